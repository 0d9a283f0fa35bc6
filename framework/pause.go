package framework

import (
	"sync"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

// pausing returns the breaker's config with the handler's gate tied to it: a
// breaker that is open pauses fetching, so that messages are not taken only to be
// given back.
func (h *handler) pausing(cfg *middleware.BreakerConfig) *middleware.BreakerConfig {
	if cfg == nil {
		return nil
	}
	c := cfg.WithDefaults()
	h.gate = &broker.Gate{}
	p := &pause{gate: h.gate, openFor: c.OpenFor, probes: c.Probes}
	theirs := c.OnState
	c.OnState = func(s middleware.BreakerState) {
		p.follow(s)
		if theirs != nil {
			theirs(s)
		}
	}
	c.Logger = cfg.Logger // the stack's, where it has none of its own
	return &c
}

// pause moves a gate as its breaker's state asks for.
type pause struct {
	gate    *broker.Gate
	openFor time.Duration
	probes  int

	mu    sync.Mutex
	state middleware.BreakerState
	timer *time.Timer
}

func (p *pause) follow(s middleware.BreakerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
	if p.timer != nil {
		p.timer.Stop()
	}
	switch s {
	case middleware.BreakerOpen:
		p.gate.Pause()
		p.timer = time.AfterFunc(p.openFor, p.probe)
	case middleware.BreakerHalfOpen:
		p.gate.Narrow(p.probes)
	default:
		p.gate.Open()
	}
}

// probe lets the messages through with which the breaker tries again: it does
// not do so without one.
func (p *pause) probe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == middleware.BreakerOpen {
		p.gate.Narrow(p.probes)
	}
}
