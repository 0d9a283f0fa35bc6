package middleware

import "time"

// Backoff is an exponential backoff with full jitter: the nth delay is a random
// time between zero and the smaller of Cap and Base x 2^(n-1).
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}
