package middleware

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff is an exponential backoff with full jitter: the nth delay is a random
// time between zero and the smaller of Cap and Base x 2^(n-1).
type Backoff struct {
	// Base is the first delay's upper bound.
	Base time.Duration
	// Cap is every delay's upper bound; at least Base.
	Cap time.Duration
}

// Ceiling returns the upper bound of the nth delay, n from 1. It never
// overflows.
func (b Backoff) Ceiling(n int) time.Duration {
	d := b.Base
	for i := 1; i < n && d < b.Cap; i++ {
		if d > b.Cap/2 {
			return b.Cap
		}
		d *= 2
	}
	return min(d, b.Cap)
}

// Delay returns a random delay in [0, Ceiling(n)].
func (b Backoff) Delay(n int) time.Duration { return jitter(b.Ceiling(n)) }

// jitter returns a random time in [0, d].
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	if d == 1<<63-1 {
		return time.Duration(rand.Int64())
	}
	return time.Duration(rand.Int64N(int64(d) + 1))
}

// orElse fills in the fields that are zero; a cap that was left out is never
// below the base.
func (b Backoff) orElse(def Backoff) Backoff {
	if b.Base == 0 {
		b.Base = def.Base
		if b.Cap > 0 {
			b.Base = min(b.Base, b.Cap)
		}
	}
	if b.Cap == 0 {
		b.Cap = max(def.Cap, b.Base)
	}
	return b
}

func (b Backoff) validate(field string) error {
	if b.Base <= 0 {
		return fmt.Errorf("middleware: %s.Base is %s: it must be above 0", field, b.Base)
	}
	if b.Cap < b.Base {
		return fmt.Errorf("middleware: %s.Cap is %s, below Base %s: raise it or leave it 0", field, b.Cap, b.Base)
	}
	return nil
}
