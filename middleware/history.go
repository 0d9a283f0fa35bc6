package middleware

import (
	"sync"
	"time"
)

// maxHistory bounds how many messages that wait for a redelivery are remembered.
const maxHistory = 10_000

// history remembers, for the story of a dead letter, what earlier deliveries of a
// message came to. It is this process's own and may forget: nothing is decided by
// it.
type history struct {
	mu   sync.Mutex
	past map[string]earlier
}

type earlier struct {
	attempts int
	first    time.Time
}

// keep notes the attempts of a delivery that failed.
func (h *history) keep(id string, rec *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.past == nil {
		h.past = map[string]earlier{}
	}
	for other := range h.past {
		if len(h.past) < maxHistory {
			break
		}
		delete(h.past, other)
	}
	h.past[id] = earlier{attempts: rec.earlier + int(rec.attempt.Load()), first: rec.firstFailed}
}

// recall tells rec what is known.
func (h *history) recall(id string, rec *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.past[id]; ok {
		rec.earlier, rec.firstFailed = e.attempts, e.first
	}
}

func (h *history) forget(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.past, id)
}
