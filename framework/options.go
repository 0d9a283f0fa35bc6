package framework

import (
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/middleware"
)

// HandlerOption sets one handler's policy where it differs from the profile's.
type HandlerOption func(*policy)

type policy struct {
	group         string
	order         bool
	park          bool
	timeout       time.Duration
	maxAge        time.Duration
	concurrency   int
	maxInFlight   int
	maxAttempts   int
	maxElapsed    time.Duration
	redeliver     []time.Duration
	transient     time.Duration
	backoff       middleware.Backoff
	lease         time.Duration
	maxDeliveries int
	nackDelay     time.Duration
	noDedup       bool
	ratePerSecond float64
	rateBurst     int
	breaker       *middleware.BreakerConfig
	needDelay     time.Duration
	needPayload   int
	needReplay    bool
}

func policyFrom(p config.Profile) policy {
	d := p.Delivery
	return policy{
		timeout:       d.HandlerTimeout,
		concurrency:   d.Concurrency,
		maxInFlight:   d.MaxInFlight,
		maxAttempts:   d.MaxAttempts,
		maxElapsed:    d.MaxElapsed,
		redeliver:     d.Redeliver,
		transient:     d.TransientBudget,
		backoff:       middleware.Backoff{Base: d.BackoffBase, Cap: d.BackoffCap},
		lease:         d.Lease,
		maxDeliveries: d.MaxDeliveries,
		nackDelay:     d.NackDelay,
	}
}

// OrderByKey handles the events of one key (the entity's id) one at a time and
// in the order of their publishing. Other keys go on in parallel. The app
// refuses to start on a broker that can't do it. Once one has failed for good the
// later ones of its key are handled without it, unless ParkKey says otherwise.
func OrderByKey() HandlerOption { return func(p *policy) { p.order = true } }

// ParkKey keeps the order of a key also over a failure, with OrderByKey: once an
// event has failed for good, the later ones of its key are not handled but go to
// the dead letters behind it, with the reason "parked". Other keys go on. Once the
// cause is mended, a replay of the dead letters handles them in order; events that
// come meanwhile park behind them, until nothing of the key is left. Without
// ParkKey the later ones are handled while the failed one lies with the dead
// letters, and its replay comes after them.
//
// It needs Config.DB, where the events that hold up their key are noted, and
// costs one indexed query for each event that has a key. A dead letter that is
// deleted by other means than headrace dlq discard leaves its key held up. On a
// broker that keeps order within one process only (Redis Streams, NATS), the
// messages that a killed process held come again after their lease, behind what
// came since: there the order of a key does not outlive a kill -9. A
// handler that starts without ParkKey forgets what its group has parked: all
// replicas must agree.
func ParkKey() HandlerOption { return func(p *policy) { p.park = true } }

// Timeout is one attempt's deadline. Default: delivery.handler_timeout.
func Timeout(d time.Duration) HandlerOption { return func(p *policy) { p.timeout = d } }

// MaxAge skips, and counts, an event whose timestamp is older: no "shipped" mail
// from two years ago after a replay. Default 0: any age is handled.
func MaxAge(d time.Duration) HandlerOption { return func(p *policy) { p.maxAge = d } }

// Concurrency is how many messages run at once. Default: delivery.concurrency.
func Concurrency(n int) HandlerOption { return func(p *policy) { p.concurrency = n } }

// MaxAttempts is how often a message is tried in one delivery. Without Redeliver
// that is all, and then it is dead-lettered. Default: delivery.max_attempts.
func MaxAttempts(n int) HandlerOption { return func(p *policy) { p.maxAttempts = n } }

// MaxElapsed bounds the time from the first attempt of a delivery to the start of
// its last. Default: delivery.max_elapsed.
func MaxElapsed(d time.Duration) HandlerOption { return func(p *policy) { p.maxElapsed = d } }

// Redeliver adds a second level of retries: a message whose attempts are used up
// goes back to the broker, which holds it for the first delay without a worker
// being busy with it; then its attempts begin anew, and so on. After the last
// delay's attempts it is dead-lettered, so it is tried MaxAttempts x
// (len(delays)+1) times at most. A crash counts as a delivery. With OrderByKey
// the later events of its key wait for it. No delays means no second level.
// Default: delivery.redeliver.
func Redeliver(delays ...time.Duration) HandlerOption {
	return func(p *policy) { p.redeliver = delays }
}

// Backoff bounds the full-jitter wait between attempts. Defaults:
// delivery.backoff_base and delivery.backoff_cap.
func Backoff(base, limit time.Duration) HandlerOption {
	return func(p *policy) { p.backoff = middleware.Backoff{Base: base, Cap: limit} }
}

// Lease is how long a consumer that has gone silent keeps a message. Default:
// delivery.lease.
func Lease(d time.Duration) HandlerOption { return func(p *policy) { p.lease = d } }

// MaxDeliveries is how often the broker may hand a message out, crashes counted,
// before it is dead-lettered without running. Default: delivery.max_deliveries.
func MaxDeliveries(n int) HandlerOption { return func(p *policy) { p.maxDeliveries = n } }

// NoDedup runs the handler for every delivery, also of an event that it handled
// before: for handlers whose effect is idempotent by itself. HandleTx and
// HandleCall keep their inbox row and refuse it.
func NoDedup() HandlerOption { return func(p *policy) { p.noDedup = true } }

// RateLimit bounds how many attempts begin in a second in this process, with
// bursts of up to burst. A message waits for its turn in its worker, before its
// timeout begins.
func RateLimit(perSecond float64, burst int) HandlerOption {
	return func(p *policy) { p.ratePerSecond, p.rateBurst = perSecond, burst }
}

// Breaker pauses the handler while its dependency is broken: nothing is fetched
// nor handed out, what is held keeps its lease, and what runs meets the open
// breaker and consumes no more attempts. After cfg.OpenFor cfg.Probes messages go
// through to try; a success opens the way for all.
func Breaker(cfg middleware.BreakerConfig) HandlerOption {
	return func(p *policy) { p.breaker = &cfg }
}

// Group names the consumer group. Default: "<service>.<handler>". Renaming it
// makes a new group, which reads the topic from its start.
func Group(name string) HandlerOption { return func(p *policy) { p.group = name } }
