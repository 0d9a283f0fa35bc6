package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

// TopicLister is what a broker's Admin may also be: one that can tell which
// topics there are.
type TopicLister interface {
	// Topics returns the names of the topics that end with suffix, in any order.
	Topics(ctx context.Context, suffix string) ([]string, error)
}

// ErrCannotList is returned by FindGroups for a broker that can't tell its
// topics.
var ErrCannotList = errors.New("this broker can't tell its topics: name the groups")

// FindGroups returns the groups that have a dead-letter topic, by name.
func FindGroups(ctx context.Context, b broker.Broker) ([]string, error) {
	lister, ok := b.Admin().(TopicLister)
	if !ok {
		return nil, fmt.Errorf("deadletter: %s: %w", b.Name(), ErrCannotList)
	}
	suffix := broker.DeadLetterTopic("")
	topics, err := lister.Topics(ctx, suffix)
	if err != nil {
		return nil, fmt.Errorf("deadletter: find the groups with dead letters: %w", err)
	}
	var groups []string
	for _, t := range topics {
		if g := strings.TrimSuffix(t, suffix); g != t && g != "" {
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

// Summary is one group's dead letters in figures.
type Summary struct {
	Group string `json:"group"`
	// Depth is how many letters there are.
	Depth int `json:"depth"`
	// Oldest and Newest are times of the last failure; zero without letters.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Reasons counts the letters by reason.
	Reasons map[string]int `json:"reasons"`
	// Causes is how many fingerprints there are.
	Causes int `json:"causes"`
}

// Summarize reads all letters that f takes and counts them.
func (q *Queue) Summarize(ctx context.Context, f Filter) (Summary, error) {
	s := Summary{Group: q.cfg.Group, Reasons: map[string]int{}}
	causes := map[string]bool{}
	for l, err := range q.Browse(ctx, f) {
		if err != nil {
			return s, err
		}
		s.Depth++
		s.Reasons[l.Reason]++
		causes[l.Fingerprint] = true
		at := l.FailedAt()
		if s.Oldest.IsZero() || at.Before(s.Oldest) {
			s.Oldest = at
		}
		if at.After(s.Newest) {
			s.Newest = at
		}
	}
	s.Causes = len(causes)
	return s, nil
}

// CauseGroup is letters that failed alike.
type CauseGroup struct {
	Fingerprint string `json:"fingerprint"`
	Group       string `json:"group"`
	Handler     string `json:"handler,omitempty"`
	Reason      string `json:"reason"`
	// Count is how many letters there are, Types how many of each event type.
	Count int            `json:"count"`
	Types map[string]int `json:"types"`
	// Oldest and Newest are times of the last failure.
	Oldest time.Time `json:"oldest"`
	Newest time.Time `json:"newest"`
	// Error is that of the newest letter, Sample its message id.
	Error  string `json:"error,omitempty"`
	Sample string `json:"sample"`
	// MaxRedrives is the highest redrive count among them.
	MaxRedrives int `json:"max_redrives"`
}

// Causes groups the letters that f takes by fingerprint, the largest group
// first.
func (q *Queue) Causes(ctx context.Context, f Filter) ([]CauseGroup, error) {
	by := map[string]*CauseGroup{}
	for l, err := range q.Browse(ctx, f) {
		if err != nil {
			return nil, err
		}
		c := by[l.Fingerprint]
		if c == nil {
			c = &CauseGroup{
				Fingerprint: l.Fingerprint, Group: q.cfg.Group, Handler: l.Handler, Reason: l.Reason,
				Types: map[string]int{}, Oldest: l.FailedAt(),
			}
			by[l.Fingerprint] = c
		}
		c.Count++
		c.Types[l.EventType]++
		c.MaxRedrives = max(c.MaxRedrives, l.Redrives)
		at := l.FailedAt()
		if at.Before(c.Oldest) {
			c.Oldest = at
		}
		if !at.Before(c.Newest) {
			c.Newest, c.Error, c.Sample = at, l.Error, l.ID
		}
	}
	out := make([]CauseGroup, 0, len(by))
	for _, c := range by {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b CauseGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out, nil
}
