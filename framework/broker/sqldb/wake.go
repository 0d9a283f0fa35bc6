package sqldb

import (
	"context"
	"sync"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// waker tells idle subscriptions that there is something to fetch: those of this
// process directly, those of others over Postgres's NOTIFY. Losing a wake-up
// costs a poll interval and nothing else.
type waker struct {
	b *Broker

	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{} // by table
	tell    map[string]struct{}                   // tables to notify other processes of
	telling bool
	closed  bool
	listen  *listener
	wg      sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
}

func newWaker(b *Broker) *waker {
	w := &waker{b: b, waiting: make(map[string]map[chan struct{}]struct{}), tell: make(map[string]struct{})}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// join returns a channel that receives when there may be something to fetch from
// t, and how to leave.
func (w *waker) join(t table) (woken chan struct{}, leave func()) {
	woken = make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	set := w.waiting[t.name]
	if set == nil {
		set = make(map[chan struct{}]struct{})
		w.waiting[t.name] = set
	}
	set[woken] = struct{}{}
	w.startListening()
	return woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(set, woken)
		if len(set) == 0 && len(w.waiting[t.name]) == 0 {
			delete(w.waiting, t.name)
		}
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// here wakes the subscriptions of this process.
func (w *waker) here(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.waiting[name] {
		notify(c)
	}
}

// all wakes every subscription of this process, since wake-ups may have been
// lost.
func (w *waker) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, set := range w.waiting {
		for c := range set {
			notify(c)
		}
	}
}

// everywhere wakes the subscriptions of every process. It doesn't wait.
func (w *waker) everywhere(name string) {
	w.here(name)
	if !w.canNotify() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.tell[name] = struct{}{}
	if !w.telling {
		w.telling = true
		w.wg.Go(w.tellOthers)
	}
}

func (w *waker) canNotify() bool { return w.b.d.name == sqltx.Postgres && !w.b.cfg.NoListen }

func (w *waker) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.stop()
	w.wg.Wait()
}
