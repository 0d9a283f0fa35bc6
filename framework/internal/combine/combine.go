// Package combine lets concurrent callers share round trips: what they ask while
// one is under way leaves together with the next. Nothing waits on a timer, so a
// lone caller is as fast as without it.
package combine

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Answer is what one caller gets.
type Answer[A any] struct {
	Value A
	Err   error
}

// Group combines the questions of its callers. Set the fields before the first
// Do. It is safe for concurrent use.
type Group[Q, A any] struct {
	// Ask sends a batch and returns an answer to each question, in their order. Its
	// context lives for Timeout, whatever becomes of the callers. Required.
	Ask func(ctx context.Context, batch []Q) []Answer[A]
	// Max is the most questions in one batch. Required.
	Max int
	// Timeout bounds one round trip. Required.
	Timeout time.Duration
	// Left, when set, is told of an answer whose caller did not wait for it. It runs
	// in a goroutine of its own.
	Left func(Q, Answer[A])

	mu    sync.Mutex
	queue []*call[Q, A]
	busy  bool // somebody leads
}

type call[Q, A any] struct {
	q Q
	// answered gets the answer, leads the word to send the next batch: one of them
	// once.
	answered chan Answer[A]
	leads    chan struct{}
	gone     bool // its caller left; under the group's lock
}

// Do asks q and waits for the answer or for the end of ctx. A question that is on
// its way when ctx ends is not taken back: Left hears of its answer.
func (g *Group[Q, A]) Do(ctx context.Context, q Q) (A, error) {
	var none A
	if err := ctx.Err(); err != nil {
		return none, context.Cause(ctx)
	}
	c := &call[Q, A]{q: q, answered: make(chan Answer[A], 1), leads: make(chan struct{}, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, c)
	lead := !g.busy
	g.busy = true
	g.mu.Unlock()
	if lead {
		return g.lead(ctx, c)
	}
	select {
	case a := <-c.answered:
		return a.Value, a.Err
	case <-c.leads:
		return g.lead(ctx, c)
	case <-ctx.Done():
	}
	if g.leave(c) {
		return none, context.Cause(ctx)
	}
	// The answer or the lead came at the same moment.
	select {
	case a := <-c.answered:
		return a.Value, a.Err
	case <-c.leads:
		return g.lead(ctx, c)
	}
}

// lead sends a batch that begins with c, hands the lead on and waits for c's own
// answer.
func (g *Group[Q, A]) lead(ctx context.Context, c *call[Q, A]) (A, error) {
	if ctx.Done() == nil {
		g.send(ctx)
	} else {
		go g.send(context.WithoutCancel(ctx))
	}
	select {
	case a := <-c.answered:
		return a.Value, a.Err
	case <-ctx.Done():
	}
	var none A
	if g.leave(c) {
		return none, context.Cause(ctx)
	}
	a := <-c.answered
	return a.Value, a.Err
}

// leave notes that c's caller is gone. It is false where an answer or the lead is
// already c's.
func (g *Group[Q, A]) leave(c *call[Q, A]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(c.answered) > 0 || len(c.leads) > 0 {
		return false
	}
	c.gone = true
	for i, other := range g.queue {
		if other == c {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			break
		}
	}
	return true
}

// send takes a batch, sends it, and hands the lead to whoever waits first.
func (g *Group[Q, A]) send(ctx context.Context) {
	// Who is about to ask comes first, where there is somebody: a batch is cheaper
	// than two.
	runtime.Gosched()
	g.mu.Lock()
	n := min(len(g.queue), g.Max)
	batch := make([]*call[Q, A], n)
	copy(batch, g.queue)
	g.queue = append(g.queue[:0], g.queue[n:]...)
	g.mu.Unlock()
	if n > 0 {
		g.answer(batch, g.ask(ctx, batch))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 {
		g.busy = false
		return
	}
	g.queue[0].leads <- struct{}{}
}

// ask sends the batch. A panic in Ask fails the batch and nobody else.
func (g *Group[Q, A]) ask(ctx context.Context, batch []*call[Q, A]) (answers []Answer[A]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.Timeout)
	defer cancel()
	all := func(err error) []Answer[A] {
		answers := make([]Answer[A], len(batch))
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	defer func() {
		if p := recover(); p != nil {
			answers = all(fmt.Errorf("combine: panic: %v", p))
		}
	}()
	questions := make([]Q, len(batch))
	for i, c := range batch {
		questions[i] = c.q
	}
	if answers = g.Ask(ctx, questions); len(answers) != len(batch) {
		return all(fmt.Errorf("combine: %d answers to %d questions", len(answers), len(batch)))
	}
	return answers
}

func (g *Group[Q, A]) answer(batch []*call[Q, A], answers []Answer[A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range batch {
		switch {
		case !c.gone:
			c.answered <- answers[i]
		case g.Left != nil:
			go g.Left(c.q, answers[i])
		}
	}
}
