package deadletter

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// ImportOptions say what is imported.
type ImportOptions struct {
	// Filter chooses among the records.
	Filter Filter
	// AnyGroup takes records of other groups too. Default false: they are an
	// error, since their messages would be replayed to a group that never had
	// them.
	AnyGroup bool
	// DryRun reads and checks all, and publishes nothing.
	DryRun bool
	// Progress is called after each record.
	Progress func(Progress)
}

// ImportReport is what an import did.
type ImportReport struct {
	// Read records were in the file, Matched of them the filter took.
	Read    int `json:"read"`
	Matched int `json:"matched"`
	// Imported letters were published and confirmed.
	Imported int `json:"imported"`
	// Present ones stand in the queue already, byte for byte.
	Present int `json:"present"`
	// Interrupted: the context ended before all was done.
	Interrupted bool `json:"interrupted"`
}

// importBatch is how many records are published in one call.
const importBatch = 100

// Import puts the records of an export back into the queue, in the file's
// order. A letter that stands in the queue byte for byte is left out, so an
// import that was cut off can be repeated. A record that can't be read is an
// error that names its line; what came before it is imported.
func (q *Queue) Import(ctx context.Context, r io.Reader, o ImportOptions) (report ImportReport, err error) {
	if err := o.Filter.Validate(); err != nil {
		return report, err
	}
	present := map[string]bool{}
	for l, err := range q.Browse(ctx, Filter{}) {
		if err != nil {
			return report, err
		}
		present[l.Digest()] = true
	}
	var batch []Letter
	flush := func() error {
		defer func() { batch = nil }()
		return q.restore(ctx, batch, o, &report)
	}
	in := bufio.NewReader(r)
	for line := 1; ; line++ {
		b, readErr := in.ReadBytes('\n')
		if readErr != nil && !errors.Is(readErr, io.EOF) {
			return report, errors.Join(fmt.Errorf("deadletter: import: line %d: %w", line, readErr), flush())
		}
		if len(b) > 0 && string(b) != "\n" {
			l, err := q.parse(b, o)
			if err != nil {
				return report, errors.Join(fmt.Errorf("deadletter: import: line %d: %w", line, err), flush())
			}
			report.Read++
			if o.Filter.Match(l) {
				report.Matched++
				if d := l.Digest(); present[d] {
					report.Present++
				} else {
					present[d] = true
					batch = append(batch, l)
				}
			}
		}
		if len(batch) == importBatch || errors.Is(readErr, io.EOF) {
			if err := flush(); err != nil || report.Interrupted {
				return report, err
			}
		}
		if errors.Is(readErr, io.EOF) {
			return report, nil
		}
	}
}

// ParseRecord reads one line of an export.
func ParseRecord(line []byte) (Letter, error) {
	var rec Record
	if err := json.Unmarshal(line, &rec); err != nil {
		return Letter{}, err
	}
	m, err := rec.message()
	if err != nil {
		return Letter{}, err
	}
	return read(broker.Stored{Position: rec.Position, PublishedAt: rec.DeadLetteredAt, Message: m}, rec.Group), nil
}

func (q *Queue) parse(line []byte, o ImportOptions) (Letter, error) {
	l, err := ParseRecord(line)
	if err != nil {
		return l, err
	}
	if l.in != q.cfg.Group && !o.AnyGroup {
		return l, fmt.Errorf("it is a dead letter of %q, not of %q", l.in, q.cfg.Group)
	}
	return l, nil
}

// restore publishes letters to the dead letters themselves.
func (q *Queue) restore(ctx context.Context, letters []Letter, o ImportOptions, report *ImportReport) error {
	if len(letters) == 0 {
		return nil
	}
	if report.Interrupted = ctx.Err() != nil; report.Interrupted {
		return nil
	}
	if !o.DryRun {
		if err := q.post(ctx, letters); err != nil {
			return err
		}
	}
	for _, l := range letters {
		report.Imported++
		if o.Progress != nil {
			o.Progress(Progress{Done: report.Imported + report.Present, ID: l.ID})
		}
		if o.DryRun {
			continue
		}
		if err := q.audit(ctx, ActionImport, l, ""); err != nil {
			return err
		}
	}
	return nil
}

// post publishes letters as they are to the queue's own topic.
func (q *Queue) post(ctx context.Context, letters []Letter) error {
	ctx, cancel := q.detached(ctx)
	defer cancel()
	msgs := make([]*message.Message, len(letters))
	for i, l := range letters {
		msgs[i] = l.Message
		msgs[i].SetContext(ctx)
	}
	if err := q.cfg.Broker.Publisher().PublishBatch(ctx, q.topic, msgs); err != nil {
		return fmt.Errorf("deadletter: publish to the dead letters of %q: %w", q.cfg.Group, err)
	}
	return nil
}
