// Package journey follows one correlation id through the topics of a broker and
// prints what happened, hop by hop.
package journey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/headrace-go/headrace/pkg/events"
)

// Hop is one event of a journey.
type Hop struct {
	// Event is what happened, by whom and when.
	Event events.Envelope
	// PublishedAt is when the broker took it: the outbox lies between.
	PublishedAt time.Time
}

// Collect reads the topics' events of one correlation id that were published at
// or after since, in the order in which they happened. Entries that are no
// events are left out: they belong to no journey.
func Collect(ctx context.Context, log Log, topics []string, correlationID string, since time.Time) ([]Hop, error) {
	var hops []Hop
	for _, topic := range topics {
		for stored, err := range log.Browse(ctx, topic, since) {
			if err != nil {
				return nil, fmt.Errorf("read topic %s: %w", topic, err)
			}
			if stored.Message.Metadata.Get(events.KeyCorrelation) != correlationID {
				continue
			}
			e, err := events.Decode(stored.Message.Payload)
			if err != nil {
				continue
			}
			hops = append(hops, Hop{Event: e, PublishedAt: stored.PublishedAt})
		}
	}
	sort.SliceStable(hops, func(i, j int) bool { return hops[i].Event.Timestamp.Before(hops[j].Event.Timestamp) })
	return hops, nil
}

// ErrIncomplete is in the chain of Await's error when ctx ended first; the hops
// that were seen are returned with it.
var ErrIncomplete = errors.New("the journey did not end in time")

// every is how often Await looks: a broker's admin view has no signal for a new
// message.
const every = 25 * time.Millisecond

// Await collects until done accepts the hops or ctx ends.
func Await(ctx context.Context, log Log, topics []string, correlationID string, since time.Time, done func([]Hop) bool) ([]Hop, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []Hop
	for {
		hops, err := Collect(ctx, log, topics, correlationID, since)
		if err == nil {
			last = hops
			if done(hops) {
				return hops, nil
			}
		} else if ctx.Err() == nil {
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("%w: seen so far: %s", ErrIncomplete, names(last))
		case <-tick.C:
		}
	}
}

func names(hops []Hop) string {
	if len(hops) == 0 {
		return "nothing"
	}
	types := make([]string, len(hops))
	for i, h := range hops {
		types[i] = h.Event.Type
	}
	return strings.Join(types, ", ")
}

// Print writes the journey: each hop's time since the start, the event below the
// one that caused it, the service that published it, and how long it lay in the
// outbox. Detail may add a word on an event; nil adds none.
func Print(w io.Writer, start time.Time, hops []Hop, detail func(events.Envelope) string) {
	children := map[string][]Hop{}
	known := map[string]bool{}
	for _, h := range hops {
		known[h.Event.ID] = true
	}
	for _, h := range hops {
		cause := h.Event.Metadata.CausationID
		if !known[cause] {
			cause = ""
		}
		children[cause] = append(children[cause], h)
	}
	var walk func(cause, indent string, top bool)
	walk = func(cause, indent string, top bool) {
		for i, h := range children[cause] {
			branch, below := "├─ ", "│  "
			if i == len(children[cause])-1 {
				branch, below = "└─ ", "   "
			}
			if top {
				branch, below = "", ""
			}
			text := ""
			if detail != nil {
				text = detail(h.Event)
			}
			line := fmt.Sprintf("  %8s  %-34s %-14s outbox %-7s %s",
				"+"+millis(h.Event.Timestamp.Sub(start)), indent+branch+h.Event.Type, h.Event.Source,
				millis(h.PublishedAt.Sub(h.Event.Timestamp)), text)
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			walk(h.Event.ID, indent+below, false)
		}
	}
	walk("", "", true)
}

// millis writes a duration in milliseconds; clocks of two machines may differ,
// so a negative one is 0.
func millis(d time.Duration) string {
	return fmt.Sprintf("%dms", max(d, 0).Milliseconds())
}
