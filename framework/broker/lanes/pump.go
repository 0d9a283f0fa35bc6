package lanes

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// Bounds of the drain beyond DrainTimeout.
const (
	// drainGrace is how long handlers may still settle after their contexts
	// were cancelled at the end of DrainTimeout.
	drainGrace = 500 * time.Millisecond
	// settleTimeout bounds sending the last acks and releases.
	settleTimeout = 5 * time.Second
	// closeTimeout bounds Source.Close.
	closeTimeout = 2 * time.Second
)

// errDrained is the cause of a message's context at the end of the drain.
var errDrained = errors.New("drain deadline passed")

// Config configures a subscription.
type Config struct {
	broker.SubscriberConfig
	// Topic names the subscription in logs and dead letters.
	Topic string
	// MaxHeld bounds what is held back beyond MaxInFlight.
	MaxHeld int
	// ReclaimEvery is how often Source.Reclaim is called.
	ReclaimEvery time.Duration
	// Heartbeat is how often leases are renewed. 0: the broker has no leases.
	Heartbeat time.Duration
	// BrokerCounts says that the broker counts deliveries itself, each time it
	// hands an entry out. A nack that counts then gives the entry back to it at
	// once, with its delay, and the later ones of the key that are here with it;
	// they come again through Fetch. A nack that does not count is held here.
	BrokerCounts bool
	// DeadLetters publishes malformed entries where OnMalformed is nil.
	DeadLetters broker.Publisher
}

// pump runs one subscription.
type pump struct {
	cfg  Config
	src  Source
	d    *dispatcher
	log  *slog.Logger
	base context.Context // values of the Subscribe context, never cancelled
	out  chan *message.Message

	draining  chan struct{} // closed when the drain begins
	abandoned chan struct{} // closed when unfinished handlers are given up
	renewNow  chan struct{}

	queue   settleQueue
	unwatch func()

	// storing is held while counts are written, from reading them here to the
	// broker's answer, so that an older count never overwrites a newer one.
	storing sync.Mutex

	// ownDead: malformed entries are dead-lettered here. An OnMalformed that the
	// subscriber was given tells of them itself.
	ownDead bool

	fetching, workers, hearts, flushing sync.WaitGroup
	stopHeart, stopFlush                context.CancelFunc
	flushCtx                            context.Context
	drainOnce                           sync.Once
	done                                chan struct{} // closed after out
}

func startPump(ctx context.Context, src Source, cfg Config) *pump {
	ownDead := cfg.OnMalformed == nil
	if ownDead {
		cfg.OnMalformed = deadLetter(cfg)
	}
	p := &pump{
		cfg: cfg, src: src, ownDead: ownDead,
		d:         newDispatcher(cfg.Concurrency, cfg.MaxInFlight, cfg.MaxHeld, cfg.SuspectFrom),
		log:       cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		base:      context.WithoutCancel(ctx),
		out:       make(chan *message.Message),
		draining:  make(chan struct{}),
		abandoned: make(chan struct{}),
		renewNow:  make(chan struct{}, 1),
		done:      make(chan struct{}),
	}
	p.queue.on = make(chan struct{}, 1)
	p.unwatch = cfg.Gate.Watch(p.d.narrow)

	fetchCtx, stopFetch := context.WithCancel(p.base)
	heartCtx, stopHeart := context.WithCancel(p.base)
	p.stopHeart = stopHeart
	p.flushCtx, p.stopFlush = context.WithCancel(p.base)

	p.fetching.Go(func() { p.fetch(fetchCtx) })
	p.fetching.Go(func() { p.load(fetchCtx) })
	if cfg.Heartbeat > 0 {
		p.hearts.Go(func() { p.heartbeat(heartCtx) })
	}
	p.flushing.Go(p.flush)
	for range cfg.Concurrency {
		p.workers.Go(p.work)
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-p.draining:
		}
		p.beginDrain()
		stopFetch()
		p.drain()
	}()
	return p
}

// beginDrain starts the drain; run waits for its end.
func (p *pump) beginDrain() { p.drainOnce.Do(func() { close(p.draining) }) }

// drain runs from the moment the drain begins to the closed channel.
func (p *pump) drain() {
	p.unwatch()
	if d, ok := p.src.(Drainer); ok {
		d.Drain()
	}
	unbegun := p.d.drain()
	p.queue.release(unbegun...)
	p.log.DebugContext(p.base, "draining", "released", len(unbegun))

	finished := make(chan struct{})
	go func() {
		p.workers.Wait()
		close(finished)
	}()
	deadline := time.NewTimer(p.cfg.DrainTimeout)
	defer deadline.Stop()
	select {
	case <-finished:
	case <-deadline.C:
		n := p.d.cancelRunning(errDrained)
		p.log.WarnContext(p.base, "handlers still run at the drain deadline; their contexts are cancelled",
			"running", n, "drain_timeout", p.cfg.DrainTimeout)
		grace := time.NewTimer(drainGrace)
		defer grace.Stop()
		select {
		case <-finished:
		case <-grace.C:
			close(p.abandoned)
			<-finished
		}
	}

	p.fetching.Wait()
	p.stopHeart()
	p.hearts.Wait()
	time.AfterFunc(settleTimeout, p.stopFlush)
	p.queue.close()
	p.flushing.Wait()
	p.stopFlush()

	ctx, cancel := context.WithTimeout(p.base, closeTimeout)
	defer cancel()
	if err := p.src.Close(ctx); err != nil {
		p.log.WarnContext(ctx, "leaving the group failed; the broker's own cleanup does it later", "error", err)
	}
	close(p.out)
	close(p.done)
}

// fetch keeps the dispatcher supplied.
func (p *pump) fetch(ctx context.Context) {
	var failed backoff
	var reclaimed time.Time
	// A broker that counts what it hands out would count the neighbours of a message
	// that kills its consumers up with it: none is fetched beside one, and the first
	// fetch, perhaps after such a death, takes a single message.
	cautious := p.cfg.BrokerCounts
	for {
		limit, ok := p.d.awaitRoom(cautious)
		if !ok {
			return
		}
		var entries []*Entry
		var err error
		if time.Since(reclaimed) >= p.cfg.ReclaimEvery {
			entries, err = p.src.Reclaim(ctx, limit, p.d.mine)
			p.take(entries)
			if len(entries) > 0 {
				continue // there may be more, and they are older than what is new
			}
			if err == nil {
				reclaimed = time.Now()
			}
		}
		if err == nil {
			entries, err = p.src.Fetch(ctx, limit)
			if len(entries) > 0 {
				cautious = p.cfg.BrokerCounts && p.d.anySuspect(entries)
			}
			p.take(entries)
		}
		if err == nil {
			if failed.failing() {
				p.log.InfoContext(ctx, "consuming again", "after", failed.since())
				failed.reset()
				// While the broker was away a lease may have run out: look now.
				notify(p.renewNow)
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if failed.first() {
			p.log.ErrorContext(ctx, "fetching failed; trying again with backoff", "error", err)
		}
		if !failed.wait(ctx) {
			return
		}
	}
}

// take puts fetched entries into the dispatcher.
func (p *pump) take(entries []*Entry) {
	if len(entries) == 0 {
		return
	}
	if p.cfg.Order {
		for _, e := range entries {
			if e.msg, e.err = p.decode(e); e.err == nil {
				e.key = e.msg.Metadata[orderingKey]
			}
		}
	}
	p.queue.release(p.d.add(entries)...)
}

// load brings held entries back when they are due.
func (p *pump) load(ctx context.Context) {
	var failed backoff
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.storing.Lock()
		loads, refs, next := p.d.takeLoads(256)
		if len(loads) > 0 {
			raw, err := p.src.Load(ctx, refs)
			var retryAt time.Time
			if err != nil {
				if failed.first() && ctx.Err() == nil {
					p.log.ErrorContext(ctx, "loading held messages failed; trying again with backoff", "error", err)
				}
				retryAt = time.Now().Add(failed.next())
			} else {
				failed.reset()
			}
			p.queue.release(p.d.loaded(loads, raw, err != nil, retryAt)...)
		}
		p.storing.Unlock()
		if len(loads) > 0 && ctx.Err() == nil {
			continue
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = max(time.Until(next), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-p.d.wake:
		case <-timer.C:
		}
	}
}

// heartbeat renews leases.
func (p *pump) heartbeat(ctx context.Context) {
	var failed backoff
	tick := time.NewTicker(p.cfg.Heartbeat)
	defer tick.Stop()
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.renewNow:
			all = true
		}
		before := time.Now()
		if !all {
			// What came a moment ago is renewed next time: most messages are
			// settled by then.
			before = before.Add(-p.cfg.Heartbeat / 2)
		}
		p.storing.Lock()
		refs := p.d.stale(before)
		var lost []string
		var err error
		if len(refs) > 0 {
			rctx, cancel := context.WithTimeout(ctx, p.cfg.Heartbeat)
			lost, err = p.src.Renew(rctx, refs)
			cancel()
		}
		p.storing.Unlock()
		if err != nil {
			p.d.unrenewed(refs)
			if failed.first() && ctx.Err() == nil {
				p.log.ErrorContext(ctx, "renewing leases failed; trying again with backoff", "error", err)
			}
			time.AfterFunc(min(failed.next(), p.cfg.Heartbeat), func() { notify(p.renewNow) })
		} else {
			failed.reset()
		}
		p.lose(lost)
	}
}

// lose cancels what this consumer no longer owns.
func (p *pump) lose(ids []string) {
	if len(ids) == 0 {
		return
	}
	if lost, ran := p.d.lose(ids, broker.ErrLeaseLost); lost > 0 {
		p.log.WarnContext(p.base, "lease lost: the broker no longer counts these messages as ours",
			"messages", lost, "running", ran)
	}
}
