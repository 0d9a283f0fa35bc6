package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Relay publishes the rows of an outbox. Any number of relays may run on one
// table. It is safe for concurrent use.
type Relay struct {
	cfg     RelayConfig
	store   store
	metrics *metrics
	wake    chan struct{}
	flushes chan chan struct{}

	keepsOrder bool // the publisher keeps the order of keys in a batch

	relayed atomic.Int64 // rows published by this relay
	proven  atomic.Int64 // when the broker last took one, unix nanoseconds
	out     atomic.Bool  // the broker is taken to be out

	looping chan struct{} // held by whoever runs the loop

	mu      sync.Mutex
	running bool
	yield   func()    // ends the loop of a Flush
	trouble error     // the database's last error, nil once it answers
	since   time.Time // since when
	stats   Stats     // as last counted
	counted time.Time
}

// NewRelay makes a Relay; Run starts it. It registers the collectors with
// Metrics, so one registry takes one relay.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if n := cfg.DB.Stats().MaxOpenConnections; n > 0 {
		cfg.Parallelism = min(cfg.Parallelism, max(n/2, 1))
	}
	if cfg.Dialect == sqltx.SQLite {
		cfg.Parallelism = 1
	}
	r := &Relay{
		cfg:     cfg,
		store:   stores[cfg.Dialect](cfg),
		wake:    make(chan struct{}, 1),
		flushes: make(chan chan struct{}),
		looping: make(chan struct{}, 1),

		keepsOrder: broker.KeepsKeyOrder(cfg.Publisher),
	}
	var err error
	if r.metrics, err = newMetrics(r, cfg.Metrics); err != nil {
		return nil, fmt.Errorf("outbox: register the relay's metrics: %w", err)
	}
	return r, nil
}

// ErrRunning is returned by Run when the relay runs already.
var ErrRunning = errors.New("outbox: the relay runs already")

// Run relays until ctx ends, then finishes the batches that are under way, which
// takes PublishTimeout at most, and returns nil. It returns ErrRunning at once
// when another Run is under way. Trouble with the database or the broker is
// logged and outlived.
func (r *Relay) Run(ctx context.Context) error {
	if !r.setRunning() {
		return ErrRunning
	}
	r.looping <- struct{}{}
	var wg sync.WaitGroup
	if r.cfg.Waker != nil {
		wg.Go(func() { r.listen(ctx) })
	}
	wg.Go(func() { r.maintain(ctx) })
	wg.Go(func() { r.housekeep(ctx) })
	r.loop(ctx, nil)
	wg.Wait()
	err := r.store.release()
	<-r.looping
	r.mu.Lock()
	r.running = false
	r.mu.Unlock()
	return err
}

// setRunning claims the relay for Run and has a Flush that loops by itself make
// room.
func (r *Relay) setRunning() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		return false
	}
	r.running = true
	if r.yield != nil {
		r.yield()
	}
	return true
}

// Wake has the relay look for rows now. It never blocks.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Flush returns nil once every row that may be published now has been, by this
// relay or another. Rows that are held back after a failure are not waited for.
// It returns an error when ctx ends first. It works while the relay runs and
// when it does not; in the latter case a batch that is under way at the end of
// ctx is still finished, which takes PublishTimeout at most.
func (r *Relay) Flush(ctx context.Context) error {
	for ctx.Err() == nil {
		done, err := r.flushAlone(ctx)
		if !done && err == nil {
			done, err = r.flushWithRun(ctx)
		}
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("outbox: flush: %w", context.Cause(ctx))
}

// flushAlone loops here unless Run does, or until it wants to.
func (r *Relay) flushAlone(ctx context.Context) (done bool, err error) {
	select {
	case r.looping <- struct{}{}:
	default:
		return false, nil
	}
	defer func() { <-r.looping }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return false, nil
	}
	r.yield = cancel
	r.mu.Unlock()
	idle := make(chan struct{})
	r.loop(ctx, idle)
	r.mu.Lock()
	r.yield = nil
	r.mu.Unlock()
	err = r.store.release()
	select {
	case <-idle:
		return true, err
	default:
		return false, err
	}
}

// flushWithRun waits until the loop of Run, or of another Flush, is idle.
func (r *Relay) flushWithRun(ctx context.Context) (done bool, err error) {
	idle := make(chan struct{}, 1)
	ended := time.NewTimer(50 * time.Millisecond) // the loop may not be there (yet)
	defer ended.Stop()
	select {
	case r.flushes <- idle:
	case <-ended.C:
		return false, nil
	case <-ctx.Done():
		return false, nil
	}
	select {
	case _, gaveUp := <-idle:
		return !gaveUp, nil
	case <-ctx.Done():
		return false, nil
	}
}

// Times of the loop.
const (
	contendedMin = 3 * time.Millisecond // first pause when other relays have every shard
	troubleMin   = 100 * time.Millisecond
	troubleMax   = 5 * time.Second
	// probeMargin and PublishTimeout are how long a relay keeps the right to try a
	// broker that took nothing: so long do the others wait when it dies with it.
	probeMargin = 2 * time.Second
)

// loop is the coordinator: it looks where there is work and hands it to workers,
// until ctx ends. With untilIdle it closes that and returns once there is none.
func (r *Relay) loop(ctx context.Context, untilIdle chan struct{}) {
	l := looper{
		relay:     r,
		results:   make(chan result, r.cfg.Parallelism),
		free:      r.cfg.Parallelism,
		busy:      make(map[int]bool, shards),
		contended: contendedMin,
		trouble:   troubleMin,
	}
	if untilIdle != nil {
		l.waiting = append(l.waiting, untilIdle)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	look := true
	for ctx.Err() == nil {
		if look && l.free > 0 {
			next := l.look(ctx)
			if untilIdle != nil && len(l.waiting) == 0 {
				break
			}
			timer.Reset(next)
		}
		look = false
		select {
		case <-ctx.Done():
		case <-r.wake:
			look = true
		case <-timer.C:
			look = true
		case idle := <-r.flushes:
			l.waiting = append(l.waiting, idle)
			look = true
		case res := <-l.results:
			if pause := l.done(ctx, res); pause > 0 {
				timer.Reset(pause)
			} else {
				look = true
			}
		}
	}
	for l.free < r.cfg.Parallelism {
		l.done(ctx, <-l.results)
	}
	for _, idle := range l.waiting {
		if idle != untilIdle {
			idle <- struct{}{}
		}
	}
}

// looper is the coordinator's state.
type looper struct {
	relay       *Relay
	results     chan result
	free        int
	busy        map[int]bool
	waiting     []chan struct{} // flushes
	contended   time.Duration
	trouble     time.Duration
	scoutFailed bool
}

// look scouts and hands out work. It returns when to look again at the latest.
func (l *looper) look(ctx context.Context) time.Duration {
	r := l.relay
	found, err := r.store.scout(ctx)
	if err != nil {
		l.scoutFailed = true
		return l.inTrouble(ctx, err)
	}
	if l.scoutFailed {
		l.outOfTrouble()
	}
	r.out.Store(found.failures > 0)
	if len(found.shards) == 0 && len(l.busy) == 0 {
		for _, idle := range l.waiting {
			close(idle)
		}
		l.waiting = nil
	}
	next := jitter(2 * r.cfg.PollInterval * 2 / 3)
	if found.nextDue > 0 {
		next = min(next, found.nextDue+time.Millisecond)
	}
	if len(found.shards) == 0 {
		return next
	}
	if found.pause > 0 {
		return min(found.pause+rand.N(10*time.Millisecond), r.cfg.OutageCap)
	}
	open := found.shards[:0]
	for _, s := range found.shards {
		if !l.busy[s] {
			open = append(open, s)
		}
	}
	if len(open) == 0 {
		return next
	}
	groups, batches, probe := l.free, runLength, false
	if found.failures > 0 {
		// The broker took nothing of late: one relay tries, with one batch.
		if len(l.busy) > 0 {
			return next
		}
		mine, err := r.store.probe(ctx, r.cfg.PublishTimeout+probeMargin)
		if err != nil {
			return l.inTrouble(ctx, err)
		}
		if !mine {
			return outageBase
		}
		groups, batches, probe = 1, 1, true
	}
	rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	groups = min(groups, len(open))
	for g := range groups {
		var part []int
		for i := g; i < len(open); i += groups {
			part = append(part, open[i])
			l.busy[open[i]] = true
		}
		l.free--
		go func() {
			res := r.work(ctx, part, r.cfg.BatchSize, batches)
			res.probe = probe
			l.results <- res
		}()
	}
	return next
}

// done takes a worker's result. A pause above 0 says not to look before.
func (l *looper) done(ctx context.Context, res result) time.Duration {
	l.free++
	for _, s := range res.shards {
		delete(l.busy, s)
	}
	switch {
	case res.err != nil:
		return l.inTrouble(ctx, res.err)
	case res.probe && res.rows == 0:
		// Nothing was tried, so the right goes back: at once when rows were only
		// held back behind others, later when other relays have the shards.
		pause := time.Millisecond
		if res.none {
			pause = jitter(outageBase)
		}
		if err := l.relay.store.shut(ctx, false, func(int) time.Duration { return pause }); err != nil {
			return l.inTrouble(ctx, err)
		}
		return pause
	case res.none:
		// Other relays have these shards. They look again when they are through;
		// this one does so in case they die.
		pause := jitter(l.contended)
		l.contended = min(2*l.contended, l.relay.cfg.PollInterval)
		return pause
	default:
		l.contended = contendedMin
		l.outOfTrouble()
		return 0
	}
}

// outOfTrouble: what failed before works again. A scout that works says nothing
// about claims that fail, so each ends its own trouble.
func (l *looper) outOfTrouble() {
	l.scoutFailed = false
	l.trouble = troubleMin
	l.relay.answered()
}

func (l *looper) inTrouble(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	if l.relay.failed(err) {
		l.relay.cfg.Logger.ErrorContext(ctx, "outbox: the relay can't work with the database; it tries on", "table", l.relay.cfg.Table, "error", err)
	}
	pause := jitter(l.trouble)
	l.trouble = min(2*l.trouble, troubleMax)
	return pause
}

// failed notes a database error and tells whether it is the first.
func (r *Relay) failed(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.trouble == nil
	if first {
		r.since = time.Now()
	}
	r.trouble = err
	return first
}

func (r *Relay) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = nil
}
