package rabbitmq

import (
	"container/heap"
	"time"
)

const (
	// rememberAcks is how many of the last acks may not have arrived when a
	// connection ends.
	rememberAcks = 16_384
	// rememberFor is how long one is waited for to come again.
	rememberFor = time.Hour
)

// settledMemory knows which messages were acked that RabbitMQ may not know of. A
// message without an identity can't be recognized and is not in it.
type settledMemory struct {
	recent []string             // acked on the present channel: a ring
	at     int                  // where the next one goes
	owed   map[string]time.Time // acked, and the channel is gone
}

// sent notes an ack on the present channel.
func (m *settledMemory) sent(id string) {
	switch {
	case id == "":
	case len(m.recent) < rememberAcks:
		m.recent = append(m.recent, id)
	default:
		m.recent[m.at] = id
		m.at = (m.at + 1) % rememberAcks
	}
}

// owe notes an ack that could not be sent.
func (m *settledMemory) owe(id string, now time.Time) {
	if id == "" {
		return
	}
	if m.owed == nil {
		m.owed = make(map[string]time.Time)
	}
	m.owed[id] = now
}

// gone notes that the channel is gone, and the last acks with it, maybe.
func (m *settledMemory) gone(now time.Time) {
	for id, since := range m.owed {
		if now.Sub(since) > rememberFor {
			delete(m.owed, id)
		}
	}
	for _, id := range m.recent {
		m.owe(id, now)
	}
	m.recent, m.at = nil, 0
}

// take tells whether an ack is owed, and forgets it.
func (m *settledMemory) take(id string) bool {
	_, ok := m.owed[id]
	delete(m.owed, id)
	return ok
}

// delays orders holds by when they are due.
type delays []*hold

func (d *delays) push(h *hold) { heap.Push((*delayHeap)(d), h) }
func (d *delays) pop() *hold   { return heap.Pop((*delayHeap)(d)).(*hold) }

type delayHeap []*hold

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h delayHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *delayHeap) Push(x any) {
	e := x.(*hold)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *delayHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}
