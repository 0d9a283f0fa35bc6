package kafka

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/framework/broker"
)

// merge brings the messages of several partitions into the order of their times.
// It yields one as soon as every partition that is not at its end has shown its
// next.
type merge struct {
	yield  func(broker.Stored) bool
	ends   map[int32]int64
	queues map[int32][]*kgo.Record
	open   int // partitions without anything queued that are not at their end
	done   bool
}

func newMerge(spans map[int32]span, yield func(broker.Stored) bool) *merge {
	m := &merge{yield: yield, ends: make(map[int32]int64), queues: make(map[int32][]*kgo.Record)}
	for p, s := range spans {
		if s.from < s.to {
			m.ends[p] = s.to
			m.open++
		}
	}
	return m
}

// add takes a partition's next record. It returns false once the reader has
// enough.
func (m *merge) add(r *kgo.Record, skip bool) bool {
	p := r.Partition
	waited := len(m.queues[p]) == 0
	if !skip {
		m.queues[p] = append(m.queues[p], clone(r))
	}
	if end, ok := m.ends[p]; ok && waited && (!skip || r.Offset >= end-1) {
		m.open--
	}
	if r.Offset >= m.ends[p]-1 {
		delete(m.ends, p)
	}
	for m.open == 0 && !m.done {
		if !m.next() {
			break
		}
	}
	return !m.done
}

// next yields the oldest record that is queued.
func (m *merge) next() bool {
	var first *kgo.Record
	for _, q := range m.queues {
		if len(q) > 0 && (first == nil || q[0].Timestamp.Before(first.Timestamp) ||
			q[0].Timestamp.Equal(first.Timestamp) && q[0].Partition < first.Partition) {
			first = q[0]
		}
	}
	if first == nil {
		return false
	}
	p := first.Partition
	m.queues[p] = m.queues[p][1:]
	if _, more := m.ends[p]; more && len(m.queues[p]) == 0 {
		m.open++
	}
	m.done = !m.yield(stored(first))
	return !m.done
}

// flush yields what is left.
func (m *merge) flush() {
	for !m.done && m.next() {
	}
}
