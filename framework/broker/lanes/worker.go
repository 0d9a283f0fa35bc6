package lanes

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

const orderingKey = events.KeyOrdering

// malformedDelay is the least time before an entry that OnMalformed refused
// comes again.
const malformedDelay = time.Second

// work runs ready entries one after the other.
func (p *pump) work() {
	for {
		e, ok := p.d.next()
		if !ok {
			return
		}
		if e.msg == nil && e.err == nil {
			e.msg, e.err = p.decode(e)
		}
		if e.err != nil {
			p.malformed(e)
			continue
		}
		p.handOut(e)
	}
}

// decode calls the source and turns a panic over hostile bytes into an error.
func (p *pump) decode(e *Entry) (msg *message.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("decoding panicked: %v", r)
		}
	}()
	return p.src.Decode(e)
}

// handOut gives e to the subscriber's channel and settles it by what comes back.
func (p *pump) handOut(e *Entry) {
	if e.Left && !p.cfg.BrokerCounts && !p.record(e) {
		return
	}
	msg := e.msg
	delivery := middleware.NewDelivery(p.cfg.Group, e.Stored, p.draining)
	ctx, cancel := context.WithCancelCause(middleware.WithDelivery(p.base, delivery))
	defer cancel(nil)
	msg.SetContext(ctx)
	if !p.d.began(e, cancel) {
		p.d.drop(e)
		return
	}
	select {
	case p.out <- msg:
	case <-p.draining:
		p.unbegun(e)
		return
	}
	select {
	case <-msg.Acked():
		p.d.ack(e)
	case <-msg.Nacked():
		p.nack(e, delivery)
	case <-p.abandoned:
		// The handler still runs. Its lease runs out by itself, so that nobody
		// else works on the message meanwhile.
		p.d.drop(e)
	}
}

// record writes the count of an entry that a consumer left behind, before the
// handler gets it. Where that fails the entry waits a little.
func (p *pump) record(e *Entry) bool {
	p.storing.Lock()
	ref, ours := p.d.count(e)
	var lost []string
	var err error
	if ours {
		lost, err = p.src.Renew(p.base, []Ref{ref})
	}
	p.storing.Unlock()
	p.lose(lost)
	if err != nil {
		p.log.WarnContext(p.base, "count of a message that another consumer left not written; it waits", "id", e.ID, "error", err)
		p.back(e, malformedDelay, true, false)
	}
	return err == nil
}

func (p *pump) unbegun(e *Entry) {
	if p.d.unbegun(e) {
		p.queue.release(e)
	}
}

func (p *pump) nack(e *Entry, delivery *middleware.Delivery) {
	delay, set := delivery.NackDelay()
	if !set {
		delay = max(p.cfg.NackDelay, 0)
	}
	p.back(e, delay, delivery.Released(), set)
}

// back holds e until its delay is over, or releases it: while draining, and
// where the broker has to count it.
func (p *pump) back(e *Entry, delay time.Duration, uncounted, asked bool) {
	if p.cfg.BrokerCounts && !uncounted {
		e.Delay = delay
		p.queue.release(p.d.giveBack(e)...)
		return
	}
	kept, dropped := p.d.hold(e, time.Now().Add(delay), uncounted)
	switch {
	case dropped:
	case kept:
		if uncounted {
			p.queue.recount(e)
		}
	default:
		// A shutdown is no failure: only a delay that was asked for holds.
		if !uncounted || asked {
			e.Delay = delay
		}
		p.queue.release(e)
	}
}

// malformed hands an entry that can't be decoded to OnMalformed.
func (p *pump) malformed(e *Entry) {
	reason := e.err
	ctx, cancel := context.WithCancelCause(p.base)
	defer cancel(nil)
	if !p.d.began(e, cancel) {
		p.d.drop(e)
		return
	}
	err := p.onMalformed(ctx, e, reason)
	if err == nil {
		if p.ownDead {
			p.log.ErrorContext(ctx, "malformed message dead-lettered", "id", e.ID, "reason", reason.Error())
		}
		p.d.ack(e)
		return
	}
	p.log.ErrorContext(ctx, "malformed message kept: OnMalformed failed", "id", e.ID, "reason", reason.Error(), "error", err)
	p.back(e, max(p.cfg.NackDelay, malformedDelay), false, true)
}

func (p *pump) onMalformed(ctx context.Context, e *Entry, reason error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("OnMalformed panicked: %v", r)
		}
	}()
	raw := p.src.Malformed(e)
	raw.SetContext(ctx)
	return p.cfg.OnMalformed(ctx, raw, reason)
}
