package lanes

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffBase = 25 * time.Millisecond
	backoffCap  = 3 * time.Second
)

// backoff spaces retries: it doubles from backoffBase to backoffCap, with the
// upper half of each step random.
type backoff struct {
	n     int
	start time.Time
}

// first tells whether the next failure is the first in a row.
func (b *backoff) first() bool { return b.n == 0 }

// failing tells whether there were failures since the last reset.
func (b *backoff) failing() bool { return b.n > 0 }

func (b *backoff) since() time.Duration { return time.Since(b.start) }

func (b *backoff) reset() { *b = backoff{} }

// next counts a failure and returns how long to wait after it.
func (b *backoff) next() time.Duration {
	if b.n == 0 {
		b.start = time.Now()
	}
	d := min(backoffBase<<min(b.n, 10), backoffCap)
	b.n++
	return d/2 + rand.N(d/2)
}

// wait counts a failure and waits. It returns false when ctx ended.
func (b *backoff) wait(ctx context.Context) bool {
	t := time.NewTimer(b.next())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
