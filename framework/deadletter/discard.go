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
	// Total is what Progress reports. Default 0: unknown.
	Total int
	// Progress is called after each letter.
	Progress func(Progress)
}

// DiscardReport is what a discard did.
type DiscardReport struct {
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
				o.Progress(Progress{Done: report.Discarded, Total: o.Total, ID: l.ID})
			}
			if err := q.audit(ctx, ActionDiscard, l, ""); err != nil {
				return err
			}
		}
		return nil
	}
	for l, err := range q.Browse(ctx, o.Filter) {
		if ctx.Err() != nil {
			report.Interrupted = true
			return report, nil
		}
		if err != nil {
			return report, errors.Join(err, flush())
		}
		if o.Limit > 0 && report.Discarded+len(batch) >= o.Limit {
			break
		}
		if batch = append(batch, l); len(batch) == DefaultBatch {
			if err := flush(); err != nil {
				return report, err
			}
		}
	}
	if ctx.Err() != nil {
		report.Interrupted = true
		return report, nil
	}
	return report, flush()
}
