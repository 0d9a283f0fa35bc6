package lanes

import (
	"sync"
	"time"
)

// settleBatch is the most entries that one round trip settles.
const settleBatch = 1000

// settleQueue holds what the flusher has to send besides acks.
type settleQueue struct {
	on chan struct{}

	mu       sync.Mutex
	releases []*Entry
	recounts []*Entry
	closed   bool
}

func (q *settleQueue) release(entries ...*Entry) {
	if len(entries) == 0 {
		return
	}
	q.mu.Lock()
	q.releases = append(q.releases, entries...)
	q.mu.Unlock()
	notify(q.on)
}

// recount has an entry's Stored count written, since it was lowered.
func (q *settleQueue) recount(e *Entry) {
	q.mu.Lock()
	q.recounts = append(q.recounts, e)
	q.mu.Unlock()
	notify(q.on)
}

// close lets the flusher end once it is empty.
func (q *settleQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	notify(q.on)
}

func (q *settleQueue) take() (releases, recounts []*Entry, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	releases, recounts = q.releases, q.recounts
	q.releases, q.recounts = nil, nil
	return releases, recounts, q.closed
}

// flush sends acks, releases and recounts as fast as the broker takes them.
func (p *pump) flush() {
	for {
		acks := p.d.takeAcks(settleBatch)
		releases, recounts, closed := p.queue.take()
		if len(acks)+len(releases)+len(recounts) == 0 {
			if closed {
				return
			}
			select {
			case <-p.d.acksOn:
			case <-p.queue.on:
			}
			continue
		}
		if len(acks) > 0 && p.send("acks", acks, func(batch []*Entry) error { return p.src.Ack(p.flushCtx, batch) }) {
			p.d.forget(acks)
			p.gather(len(acks))
		}
		if len(recounts) > 0 {
			p.send("recounts", recounts, func(batch []*Entry) error {
				p.storing.Lock()
				defer p.storing.Unlock()
				lost, err := p.src.Renew(p.flushCtx, p.d.refs(batch))
				p.lose(lost)
				return err
			})
		}
		for len(releases) > 0 {
			n := min(settleBatch, len(releases))
			batch := releases[:n]
			releases = releases[n:]
			if p.send("releases", batch, func(batch []*Entry) error { return p.src.Release(p.flushCtx, batch) }) {
				p.d.forget(batch)
			}
		}
	}
}

const (
	// While messages run, acks gather for so long: one round trip for each would
	// cost more than many a handler.
	gatherTime = time.Millisecond
	// gatherEnough is a batch that is large without waiting.
	gatherEnough = 64
)

// gather waits a moment after a small batch, so that the next is larger, unless
// nothing runs or the drain has begun.
func (p *pump) gather(sent int) {
	if sent >= gatherEnough || !p.d.busy() {
		return
	}
	pause := time.NewTimer(gatherTime)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-p.draining:
	}
}

// send repeats one settlement until it is done or the last moment has come.
func (p *pump) send(what string, batch []*Entry, do func([]*Entry) error) bool {
	var failed backoff
	for {
		err := do(batch)
		if err == nil {
			return true
		}
		if p.flushCtx.Err() != nil {
			p.log.ErrorContext(p.base, "not sent before the end; the lease brings these messages back",
				"what", what, "messages", len(batch), "error", err)
			return false
		}
		if failed.first() {
			p.log.ErrorContext(p.base, "settling failed; trying again with backoff", "what", what, "messages", len(batch), "error", err)
		}
		failed.wait(p.flushCtx)
	}
}
