package framework

import (
	"errors"
	"sync"
)

// crew keeps the goroutines that run a handler's attempts. An attempt needs one
// that no other attempt is on; one that is used again has its stack grown
// already, which costs a fresh one more than most handlers.
type crew struct {
	jobs chan func()
	quit chan struct{}
	hold sync.WaitGroup
}

func newCrew() *crew { return &crew{jobs: make(chan func()), quit: make(chan struct{})} }

// start adds n goroutines, which wait for work until stop.
func (c *crew) start(n int) {
	for range n {
		c.hold.Go(c.work)
	}
}

// stop ends the goroutines as they come free. It does not wait for them. It is
// called once.
func (c *crew) stop() { close(c.quit) }

// do runs f on a goroutine of the crew, else on a new one.
func (c *crew) do(f func()) {
	select {
	case c.jobs <- f:
	default:
		go f()
	}
}

// wait runs f as do does and returns its error once it has ended.
func (c *crew) wait(f func() error) error {
	ended := make(chan error, 1)
	c.do(func() {
		err := errGoroutineEnded
		defer func() { ended <- err }()
		err = f()
	})
	return <-ended
}

var errGoroutineEnded = errors.New("the handler ended its goroutine")

func (c *crew) work() {
	for {
		select {
		case <-c.quit:
			return
		case f := <-c.jobs:
			if !c.run(f) {
				return
			}
		}
	}
}

// run runs f. Should f end the goroutine, another takes its place.
func (c *crew) run(f func()) (returned bool) {
	defer func() {
		if !returned {
			c.hold.Go(c.work)
		}
	}()
	f()
	return true
}
