package sandbox

import "time"

// The payment tokens that the sandbox knows. Any other token is declined with
// the reason "unknown_token".
const (
	// TokenOK is captured at once.
	TokenOK = "tok_ok"
	// TokenDeclined is declined with the reason "declined".
	TokenDeclined = "tok_declined"
	// TokenInsufficientFunds is declined with the reason "insufficient_funds".
	TokenInsufficientFunds = "tok_insufficient_funds"
	// TokenSlow is captured after Config.Slow.
	TokenSlow = "tok_slow"
	// TokenTimeout is never answered and never captured: each request ends with
	// its deadline.
	TokenTimeout = "tok_timeout"
	// TokenLost is captured, but the answer to the first request is lost. The
	// same key again is answered.
	TokenLost = "tok_lost"
	// TokenFlaky fails twice for each idempotency key, then it is captured.
	TokenFlaky = "tok_flaky"
	// TokenBusy is told once for each idempotency key to come back after
	// Config.RetryAfter, then it is captured.
	TokenBusy = "tok_busy"
	// TokenInvalid is refused as a request that can never work: permanent.
	TokenInvalid = "tok_invalid"
)

// behaviour is what a token does to a charge that has no outcome yet.
type behaviour struct {
	declines string
	slow     bool
	silent   bool
	loses    bool
	invalid  bool
	// failures is how many requests of one key fail before it works.
	failures int64
	// asksToWait makes those failures carry a Retry-After.
	asksToWait bool
}

var behaviours = map[string]behaviour{
	TokenOK:                {},
	TokenDeclined:          {declines: "declined"},
	TokenInsufficientFunds: {declines: "insufficient_funds"},
	TokenSlow:              {slow: true},
	TokenTimeout:           {silent: true},
	TokenLost:              {loses: true},
	TokenFlaky:             {failures: 2},
	TokenBusy:              {failures: 1, asksToWait: true},
	TokenInvalid:           {invalid: true},
}

func behaviourOf(token string) behaviour {
	b, known := behaviours[token]
	if !known {
		return behaviour{declines: "unknown_token"}
	}
	return b
}

// Defaults of Config.
const (
	DefaultTimeout    = 5 * time.Second
	DefaultSlow       = 2 * time.Second
	DefaultRetryAfter = time.Second
)
