package deadletter

import (
	"context"
	"errors"
	"io"

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
	// Interrupted: the context ended before all was done.
	Interrupted bool `json:"interrupted"`
}

// ErrNoArchive is returned by Discard without an archive.
var ErrNoArchive = errors.New("deadletter: Archive is nil: give Discard a file, what goes must be in one first")

// Discard deletes letters, each once it is in the archive. The end of ctx ends
// it after the letters in hand.
func (q *Queue) Discard(ctx context.Context, o DiscardOptions) (report DiscardReport, err error) {
	if o.Archive == nil {
		return report, ErrNoArchive
	}
	a := archive{o.Archive}
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
	if report.Matched, err = q.Count(ctx, o.Filter); err != nil {
		return report, interruptedDiscard(ctx, &report, err)
	}
	if o.Limit > 0 {
		report.Matched = min(report.Matched, o.Limit)
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
