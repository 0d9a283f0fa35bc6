package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/internal/failpoint"
)

// DiscardOptions say which letters go.
type DiscardOptions struct {
	// Filter chooses the letters. The zero Filter takes all.
	Filter Filter
	// Limit is how many go at most. Default 0: no limit.
	Limit int
	// Archive receives each letter as a Record before it is deleted; where it has
	// a Sync method, that is called before each deletion. Required: Import reads
	// it.
	Archive io.Writer
	// Progress is called after each letter.
	Progress func(Progress)
}

// DiscardReport is what a discard did.
type DiscardReport struct {
	// Matched is how many letters the filter took at the start, at most Limit.
	Matched int `json:"matched"`
	// Discarded letters are in the archive and deleted.
	Discarded int `json:"discarded"`
	// Released of them held up their key; their group was told.
	Released int `json:"released"`
	// Interrupted: the context ended before all was done.
	Interrupted bool `json:"interrupted"`
}

// ErrNoArchive is returned by Discard without an archive.
var ErrNoArchive = errors.New("deadletter: Archive is nil: give Discard a file, what goes must be in one first")

// Discard deletes letters, each once it is in the archive. The end of ctx ends
// it after the letters in hand.
//
// Before it deletes a letter that holds up its key, it tells the group over the
// redrive topic that the letter is gone, so that those behind it can be
// replayed; the message itself is not sent. Where another letter has the same
// place, a copy or an edited one, the key stays held up for that one.
func (q *Queue) Discard(ctx context.Context, o DiscardOptions) (report DiscardReport, err error) {
	if o.Archive == nil {
		return report, ErrNoArchive
	}
	a := archive{o.Archive}
	places := map[place]int{}
	var batch []Letter
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		letters := batch
		batch = nil
		if err := errors.Join(a.add(q.cfg.Group, letters...), a.sync()); err != nil {
			return err
		}
		failpoint.Hit("discard.archived")
		released, err := q.release(ctx, letters, places)
		if err != nil {
			return err
		}
		failpoint.Hit("discard.released")
		report.Released += released
		if err := q.remove(ctx, letters); err != nil {
			return err
		}
		for _, l := range letters {
			report.Discarded++
			if o.Progress != nil {
				o.Progress(Progress{Done: report.Discarded, Total: report.Matched, ID: l.ID})
			}
			if err := q.audit(ctx, ActionDiscard, l, ""); err != nil {
				return err
			}
		}
		return nil
	}
	if report.Matched, err = q.census(ctx, o.Filter, places); err != nil {
		return report, interruptedDiscard(ctx, &report, err)
	}
	if o.Limit > 0 {
		report.Matched = min(report.Matched, o.Limit)
	}
	if len(places) > 0 {
		// A broker without the group's queue would drop what is published.
		if err := q.cfg.Broker.EnsureTopology(ctx, broker.Subscription{Topic: q.RedriveTopic(), Group: q.cfg.Group}); err != nil {
			return report, interruptedDiscard(ctx, &report, fmt.Errorf("deadletter: prepare the redrive topic of %q: %w", q.cfg.Group, err))
		}
	}
	// Once is enough where Browse shows all; SQS may show a part at a time.
	for before := -1; report.Discarded < report.Matched && report.Discarded > before; {
		before = report.Discarded
		for l, err := range q.Browse(ctx, o.Filter) {
			if err != nil || ctx.Err() != nil {
				return report, interruptedDiscard(ctx, &report, err)
			}
			if report.Discarded+len(batch) >= report.Matched {
				break
			}
			if batch = append(batch, l); len(batch) == DefaultBatch {
				if err := flush(); err != nil {
					return report, err
				}
			}
		}
		if err := flush(); err != nil {
			return report, err
		}
	}
	return report, nil
}

func interruptedDiscard(ctx context.Context, report *DiscardReport, err error) error {
	if report.Interrupted = ctx.Err() != nil; report.Interrupted {
		return nil
	}
	return err
}

// place is what a letter holds up.
type place struct {
	key string
	seq int64
}

// census counts the letters that f takes, and all letters at each place.
func (q *Queue) census(ctx context.Context, f Filter, places map[place]int) (matched int, err error) {
	if err := f.Validate(); err != nil {
		return 0, err
	}
	for l, err := range q.Browse(ctx, Filter{}) {
		if err != nil {
			return matched, err
		}
		if l.ParksKey {
			places[place{l.Key, l.ParkSeq}]++
		}
		if f.Match(l) {
			matched++
		}
	}
	return matched, nil
}

// release tells the group which places the letters give up for good.
func (q *Queue) release(ctx context.Context, letters []Letter, places map[place]int) (int, error) {
	ctx, cancel := q.detached(ctx)
	defer cancel()
	var msgs []*message.Message
	for _, l := range letters {
		if !l.ParksKey {
			continue
		}
		at := place{l.Key, l.ParkSeq}
		if places[at]--; places[at] <= 0 {
			m := l.withdrawn()
			m.SetContext(ctx)
			msgs = append(msgs, m)
		}
	}
	if len(msgs) == 0 {
		return 0, nil
	}
	if err := q.cfg.Broker.Publisher().PublishBatch(ctx, q.RedriveTopic(), msgs); err != nil {
		return 0, fmt.Errorf("deadletter: tell %q that letters which hold up their keys are gone; none of them was deleted: %w", q.cfg.Group, err)
	}
	return len(msgs), nil
}
