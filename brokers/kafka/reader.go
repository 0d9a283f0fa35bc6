package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// span is a stretch of offsets, from the first up to the last and without it.
type span struct{ from, to int64 }

// ends returns the offsets behind the newest messages; none for a topic that does
// not exist.
func (b *Broker) ends(ctx context.Context, name string) (map[int32]int64, error) {
	listed, err := b.admin.ListCommittedOffsets(ctx, name)
	return offsets(listed, name, err)
}

// starts returns the offsets of the oldest messages.
func (b *Broker) starts(ctx context.Context, name string) (map[int32]int64, error) {
	listed, err := b.admin.ListStartOffsets(ctx, name)
	return offsets(listed, name, err)
}

func offsets(listed kadm.ListedOffsets, name string, err error) (map[int32]int64, error) {
	if err == nil {
		err = listed.Error()
	}
	if missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	out := make(map[int32]int64, len(listed[name]))
	for p, l := range listed[name] {
		out[p] = l.Offset
	}
	return out, nil
}

// read reads spans of a topic's partitions, all of one partition in order, until
// yield returns false. Records that tell of transactions are left out.
func (b *Broker) read(ctx context.Context, name string, spans map[int32]span, yield func(*kgo.Record) bool) error {
	open := make(map[int32]int64, len(spans))
	from := make(map[int32]kgo.Offset, len(spans))
	for p, s := range spans {
		if s.from < s.to {
			open[p], from[p] = s.to, kgo.NewOffset().At(s.from)
		}
	}
	if len(open) == 0 {
		return nil
	}
	client, err := kgo.NewClient(b.options(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{name: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	for len(open) > 0 {
		fetches := client.PollRecords(ctx, 1000)
		if err := fetchError(fetches); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			to, ok := open[r.Partition]
			if !ok {
				continue
			}
			if r.Offset >= to-1 {
				delete(open, r.Partition)
			}
			if r.Offset < to && !r.Attrs.IsControl() && !yield(r) {
				return nil
			}
		}
	}
	return nil
}

// fetchError is what a poll tells but that its time is over.
func fetchError(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		if !errors.Is(e.Err, context.DeadlineExceeded) && !errors.Is(e.Err, context.Canceled) {
			return e.Err
		}
	}
	return nil
}
