package broker

import "sync"

// Gate stops and narrows what subscribers hand out, for a dependency that is
// broken: what they hold stays theirs, leases are renewed, and nothing is
// fetched beside a fetch that is under way. Its zero value is open. It is safe
// for concurrent use; a nil Gate is always open.
type Gate struct {
	mu       sync.Mutex
	limited  bool
	limit    int
	watchers map[*func(int)]struct{}
}

// NoLimit is what a Gate tells its watchers when it is open.
const NoLimit = -1

// Open lets everything through.
func (g *Gate) Open() { g.set(false, 0) }

// Pause lets nothing through. What runs goes on.
func (g *Gate) Pause() { g.set(true, 0) }

// Narrow lets messages through as long as fewer than n run in a subscription.
func (g *Gate) Narrow(n int) { g.set(true, max(n, 1)) }

// Limit is how many messages may run in a subscription: NoLimit, 0 while paused.
func (g *Gate) Limit() int {
	if g == nil {
		return NoLimit
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limitLocked()
}

func (g *Gate) limitLocked() int {
	if !g.limited {
		return NoLimit
	}
	return g.limit
}

func (g *Gate) set(limited bool, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limited == limited && g.limit == n {
		return
	}
	g.limited, g.limit = limited, n
	for fn := range g.watchers {
		(*fn)(g.limitLocked())
	}
}

// Watch calls fn with the limit now and at each change, one call at a time, until
// stop is called. Fn must neither block nor use the Gate. It is for adapters.
func (g *Gate) Watch(fn func(limit int)) (stop func()) {
	if g == nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watchers == nil {
		g.watchers = map[*func(int)]struct{}{}
	}
	g.watchers[&fn] = struct{}{}
	fn(g.limitLocked())
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.watchers, &fn)
	}
}
