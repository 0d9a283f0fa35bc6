package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/internal/failpoint"
	"github.com/headrace-go/headrace/framework/sqltx"
)

const (
	// settleTimeout bounds the database's part after a publish. The broker has
	// the rows then, so it gets every chance.
	settleTimeout = 15 * time.Second
	// claimTimeout bounds the database's part before it.
	claimTimeout = 30 * time.Second
	// outageBase is the first pause on a broker that takes nothing.
	outageBase = 200 * time.Millisecond
	// outageStep is the pause after an attempt with rows that had failed before,
	// which says little about the broker.
	outageStep = time.Second
	// runLength is how many full batches a worker does before it lets the
	// coordinator look around.
	runLength = 16
)

// result is what a worker reports.
type result struct {
	shards []int
	rows   int
	none   bool // could lock nothing
	probe  bool // had the right to try a broker that took nothing
	err    error
}

// work drains shards for a while. It outlives ctx until its batch is settled.
func (r *Relay) work(ctx context.Context, shards []int, limit, batches int) result {
	res := result{shards: shards}
	for range batches {
		n, more, none, err := r.batch(ctx, shards, limit)
		res.rows += n
		res.none, res.err = none && res.rows == 0, err
		if err != nil || none || !more || ctx.Err() != nil {
			break
		}
	}
	return res
}

// batch claims, publishes and settles once.
func (r *Relay) batch(ctx context.Context, shards []int, limit int) (n int, more, none bool, err error) {
	// A cancelled claim is rolled back by database/sql at once, publish or no
	// publish: so the whole batch runs on, bounded.
	detached := context.WithoutCancel(ctx)
	dbCtx, cancel := context.WithTimeout(detached, claimTimeout+r.cfg.PublishTimeout+publishGrace+settleTimeout)
	defer cancel()
	c, err := r.store.claim(dbCtx, shards, limit)
	if err != nil {
		return 0, false, false, err
	}
	if c == nil {
		return 0, false, true, nil
	}
	defer c.abandon()
	rows := c.rows()
	if len(rows) == 0 {
		// The claim may have held rows back behind others.
		_, err := c.settle(dbCtx, outcome{})
		return 0, c.full(), false, err
	}

	began := time.Now()
	pubCtx, cancelPub := context.WithTimeoutCause(detached, r.cfg.PublishTimeout, errPublishTimeout)
	verdicts := r.publish(pubCtx, rows)
	cancelPub()
	r.metrics.published(len(rows), time.Since(began))
	failpoint.Hit("relay.published")

	sum := r.judge(rows, verdicts)
	if len(sum.outcome.sent) > 0 {
		r.proven.Store(time.Now().UnixNano())
	}
	sum.outcome.proven = r.provenAge()
	if sum.alone() && r.brokerIsUp(detached) {
		sum.strikeAll()
	}
	settleCtx, cancelSettle := context.WithTimeout(detached, settleTimeout)
	defer cancelSettle()
	parked, err := c.settle(settleCtx, sum.outcome)
	if err != nil {
		return 0, false, false, err
	}
	r.relayed.Add(int64(len(sum.outcome.sent)))
	r.metrics.settled(len(sum.outcome.sent), sum)
	r.report(ctx, rows, verdicts, parked)
	if err := r.steer(settleCtx, sum, began); err != nil {
		return len(rows), false, false, err
	}
	return len(rows), c.full() && len(sum.outcome.failed) == 0, false, nil
}

var errPublishTimeout = errors.New("the broker did not confirm within PublishTimeout")

// summary is what a batch's verdicts come to.
type summary struct {
	outcome  outcome
	failed   int  // rows that may succeed later
	rejected int  // rows the broker will never take
	corrupt  int  // rows that can't be read
	fresh    bool // a row failed for the first time
	silent   bool // a row failed without an answer of the broker
}

// alone: nothing but rows that failed before was tried, and the broker answered.
func (s summary) alone() bool {
	return len(s.outcome.sent) == 0 && s.failed > 0 && !s.fresh && !s.silent
}

// strikeAll counts every failure as one of the row's own.
func (s summary) strikeAll() {
	for i := range s.outcome.failed {
		s.outcome.failed[i].Strike = s.outcome.failed[i].Attempt
	}
}

const (
	// loneRows is the largest backlog whose failures may be laid to the rows
	// themselves on the word of Probe alone.
	loneRows     = 20
	probeTimeout = 5 * time.Second
)

// brokerIsUp tells whether the broker is known to be up and nothing but a few
// rows can be to blame.
func (r *Relay) brokerIsUp(ctx context.Context) bool {
	if r.cfg.Probe == nil || r.cfg.MaxAttempts < 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, min(probeTimeout, r.cfg.PublishTimeout))
	defer cancel()
	st, err := r.store.stats(ctx)
	return err == nil && st.Backlog <= loneRows && r.cfg.Probe(ctx) == nil
}

// unanswered tells whether a failure says that the broker was not reached, or
// did not answer in time.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, errNotReturned) || errors.Is(err, errPublishTimeout) || errors.Is(err, broker.ErrClosed) || sqltx.IsTransient(err)
}

// judge turns verdicts into what becomes of the rows.
func (r *Relay) judge(rows []row, verdicts []error) summary {
	s := summary{outcome: outcome{maxAttempts: max(r.cfg.MaxAttempts, 0), retain: r.cfg.Retention > 0}}
	s.outcome.sent = make([]int64, 0, len(rows))
	for i := range rows {
		if verdicts[i] == nil {
			s.outcome.sent = append(s.outcome.sent, rows[i].offset)
		}
	}
	if len(s.outcome.sent) == len(rows) {
		return s
	}
	type hold struct {
		delay  time.Duration
		parked bool
	}
	keys := map[string]hold{}
	strike := 0
	if len(s.outcome.sent) > 0 {
		strike = 1
	}
	for i := range rows {
		err := verdicts[i]
		if err == nil {
			continue
		}
		// SQL text takes no NUL.
		f := failure{Offset: rows[i].offset, Error: strings.ReplaceAll(err.Error(), "\x00", "\\0")}
		h, behind := keys[rows[i].key]
		behind = behind && rows[i].key != ""
		switch {
		case rows[i].corrupt != nil:
			s.corrupt++
			f.Park, f.Attempt = true, 1
		case errors.Is(err, broker.ErrRejected):
			s.rejected++
			f.Park, f.Attempt = true, 1
		case behind:
			f.Delay, f.Park = h.delay.Microseconds(), h.parked
			f.Error = errBehind.Error()
			if h.parked {
				f.Error = behindParked
			}
		default:
			s.failed++
			s.fresh = s.fresh || rows[i].attempts == 0
			s.silent = s.silent || unanswered(err)
			h = hold{delay: r.holdBack(rows[i].attempts)}
			keys[rows[i].key] = h
			f.Attempt, f.Strike, f.Delay = 1, strike, h.delay.Microseconds()
		}
		if f.Park && r.cfg.StrictOrder && !behind {
			keys[rows[i].key] = hold{parked: true}
		}
		s.outcome.failed = append(s.outcome.failed, f)
	}
	return s
}

// holdBack is how long a row waits after it has failed once more.
func (r *Relay) holdBack(attempts int) time.Duration {
	return jitter(exponential(attempts, r.cfg.BackoffBase, r.cfg.BackoffCap))
}

// exponential returns min(ceiling, base x 2^n).
func exponential(n int, base, ceiling time.Duration) time.Duration {
	if n < 32 && base<<n > 0 && base<<n < ceiling {
		return base << n
	}
	return ceiling
}

// jitter returns a random time between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// provenAge is how long ago the broker was last seen to take a message; negative
// when it was not.
func (r *Relay) provenAge() time.Duration {
	at := r.proven.Load()
	if at == 0 {
		return -time.Second
	}
	return time.Since(time.Unix(0, at))
}

// steer opens or shuts the gate that all relays of the table share.
func (r *Relay) steer(ctx context.Context, s summary, began time.Time) error {
	out := r.out.Load()
	switch {
	case len(s.outcome.sent) > 0:
		if !out {
			return nil
		}
		r.out.Store(false)
		r.cfg.Logger.InfoContext(ctx, "outbox: the broker takes messages again", "table", r.cfg.Table)
		return r.store.open(ctx)
	case s.failed == 0, r.proven.Load() >= began.UnixNano():
		return nil // nothing is known against the broker
	case s.fresh:
		if !out {
			r.cfg.Logger.WarnContext(ctx, "outbox: the broker took nothing of a batch; relays pause", "table", r.cfg.Table)
		}
		return r.store.shut(ctx, true, func(failures int) time.Duration {
			return jitter(exponential(failures, outageBase, r.cfg.OutageCap))
		})
	case out:
		return r.store.shut(ctx, false, func(int) time.Duration { return jitter(min(outageStep, r.cfg.OutageCap)) })
	default:
		return nil
	}
}

// report logs what was parked and the first row that was held back.
func (r *Relay) report(ctx context.Context, rows []row, verdicts []error, parked []int64) {
	if len(parked) > 0 {
		is := make(map[int64]bool, len(parked))
		for _, o := range parked {
			is[o] = true
		}
		for i := range rows {
			if is[rows[i].offset] {
				r.cfg.Logger.ErrorContext(ctx, "outbox: row parked", append(describe(rows[i]), "reason", verdicts[i])...)
			}
		}
	}
	for i := range rows {
		if verdicts[i] == nil || errors.Is(verdicts[i], broker.ErrRejected) || rows[i].corrupt != nil {
			continue
		}
		r.cfg.Logger.WarnContext(ctx, "outbox: rows held back", append(describe(rows[i]), "attempt", rows[i].attempts+1, "reason", verdicts[i])...)
		return
	}
}

func describe(r row) []any {
	a := []any{"offset", r.offset}
	if r.msg != nil {
		a = append(a, "topic", r.topic, "event_id", r.msg.UUID)
	}
	return a
}
