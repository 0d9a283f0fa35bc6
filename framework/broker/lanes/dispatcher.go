package lanes

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

// loadAhead is how many held entries of one key are loaded in one go.
const loadAhead = 16

// dispatcher decides which entry runs next. It owns every entry from the fetch
// until the broker confirmed its settlement. Safe for concurrent use.
type dispatcher struct {
	workers     int
	maxInFlight int
	maxHeld     int
	suspectFrom int
	now         func() time.Time

	wake chan struct{} // the loader has something to look at

	mu       sync.Mutex
	work     sync.Cond // workers wait for a ready lane
	room     sync.Cond // the fetcher waits for room
	table    map[string]*Entry
	lanes    map[string]*lane
	ready    laneQueue
	suspects laneQueue // ready too; only one of them runs at a time
	loads    laneQueue
	delayed  dueHeap
	draining bool
	limit    int // how many may run, while the gate is not open; else broker.NoLimit

	waitingN, runningN, loadingN, heldN int
	aloneN                              int // suspects that run: 0 or 1

	acks   []*Entry      // settled, to be sent
	acksOn chan struct{} // acks is not empty
}

func newDispatcher(workers, maxInFlight, maxHeld, suspectFrom int) *dispatcher {
	d := &dispatcher{
		workers: workers, maxInFlight: maxInFlight, maxHeld: maxHeld, suspectFrom: suspectFrom, now: time.Now, limit: broker.NoLimit,
		wake:   make(chan struct{}, 1),
		acksOn: make(chan struct{}, 1),
		table:  make(map[string]*Entry),
		lanes:  make(map[string]*lane),
	}
	d.work.L, d.room.L = &d.mu, &d.mu
	return d
}

// suspect tells whether consumers may have died of the entry.
func (d *dispatcher) suspect(e *Entry) bool { return e.Left && e.Stored >= d.suspectFrom }

// anySuspect tells whether there is one among entries.
func (d *dispatcher) anySuspect(entries []*Entry) bool {
	return slices.ContainsFunc(entries, d.suspect)
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add takes fetched entries in. It returns those that must be released, because
// the drain has begun.
func (d *dispatcher) add(entries []*Entry) (release []*Entry) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, e := range entries {
		if _, twice := d.table[e.ID]; twice {
			continue
		}
		e.index, e.renewed, e.uncounted = -1, now, e.Left
		d.table[e.ID] = e
		if d.draining {
			e.state = settled
			e.Stored--
			release = append(release, entries[i])
			continue
		}
		l := &e.own
		if e.key != "" {
			if l = d.lanes[e.key]; l == nil {
				l = &lane{key: e.key}
				d.lanes[e.key] = l
			}
		}
		e.lane = l
		l.insert(e)
		e.state = waiting
		d.waitingN++
		d.place(l, e)
	}
	return release
}

// place decides what becomes of e, which was just put into l.
func (d *dispatcher) place(l *lane, e *Entry) {
	if d.resident() > d.maxInFlight {
		d.park(e)
	}
	switch l.state {
	case laneIdle:
		d.advance(l)
	case laneDelayed:
		if l.head == e {
			heap.Remove(&d.delayed, e.next.index)
			d.advance(l)
		} else {
			d.park(e)
		}
	case laneToLoad, laneLoading:
		if l.head != e {
			d.park(e)
		}
	case laneReady, laneRunning:
		// Too many behind busy keys would leave no room for the other keys.
		if (l.head != e || l.state == laneRunning) && d.waitingN-d.ready.n-d.suspects.n > d.maxInFlight/2 {
			d.park(e)
		}
	}
}

// park drops the body of a waiting entry. Its delivery did not happen.
func (d *dispatcher) park(e *Entry) {
	if e.state != waiting {
		return
	}
	e.state, e.due = held, time.Time{}
	e.Raw, e.msg, e.err = nil, nil, nil
	e.Stored--
	e.uncounted = false
	d.waitingN--
	d.heldN++
}

func (d *dispatcher) resident() int { return d.waitingN + d.runningN + d.loadingN }

// advance moves a lane that nothing runs in to where its head belongs.
func (d *dispatcher) advance(l *lane) {
	e := l.head
	if e == nil {
		l.state = laneIdle
		if l.key != "" {
			delete(d.lanes, l.key)
		}
		return
	}
	switch e.state {
	case waiting:
		l.state = laneReady
		if d.suspect(e) {
			d.suspects.push(l)
		} else {
			d.ready.push(l)
		}
		d.work.Signal()
	case loading:
		l.state = laneLoading
	case held:
		if e.due.After(d.now()) {
			l.state = laneDelayed
			heap.Push(&d.delayed, e)
			if d.delayed[0] == e {
				notify(d.wake)
			}
			return
		}
		l.state = laneToLoad
		d.loads.push(l)
		notify(d.wake)
	}
}

// next returns the next entry to run, and waits for one. It returns false once
// the drain has begun.
func (d *dispatcher) next() (*Entry, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if d.draining {
			return nil, false
		}
		if d.limit != broker.NoLimit && d.runningN >= d.limit {
			d.work.Wait()
			continue
		}
		l := d.popReady()
		if l == nil {
			d.work.Wait()
			continue
		}
		e := l.head
		if e == nil || e.state != waiting {
			d.advance(l)
			continue
		}
		if d.suspect(e) {
			if d.aloneN > 0 { // it came to the head of a lane that was ready
				d.suspects.push(l)
				continue
			}
			e.alone = true
			d.aloneN++
		}
		l.pop()
		l.state = laneRunning
		e.state = running
		d.waitingN--
		d.runningN++
		d.signalRoom()
		return e, true
	}
}

// popReady returns the next lane to run. Suspects come first, one at a time: when
// the process dies, it is of that one.
func (d *dispatcher) popReady() *lane {
	if d.aloneN == 0 {
		if l := d.suspects.pop(); l != nil {
			return l
		}
	}
	return d.ready.pop()
}

// ended gives up what a running entry held.
func (d *dispatcher) ended(e *Entry) {
	d.runningN--
	if e.alone {
		e.alone = false
		d.aloneN--
		d.work.Signal()
	}
	d.signalWork()
}

// count marks the present delivery of a running entry as one that the broker has
// to have on record. It returns the entry's state, or false when its lease is
// gone.
func (d *dispatcher) count(e *Entry) (Ref, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.uncounted = false
	return e.ref(), !e.lost
}

// began registers how to cancel a running entry. It returns false when its
// lease is gone already.
func (d *dispatcher) began(e *Entry, cancel context.CancelCauseFunc) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.cancel = cancel
	return !e.lost
}

// ack settles a running entry and lets its key go on.
func (d *dispatcher) ack(e *Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.state = settled
	e.Raw, e.msg = nil, nil
	if e.lost {
		delete(d.table, e.ID)
	} else {
		d.acks = append(d.acks, e)
		if len(d.acks) == 1 {
			notify(d.acksOn)
		}
	}
	d.leave(e)
}

// drop forgets a running entry that this consumer no longer owns.
func (d *dispatcher) drop(e *Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.state = settled
	delete(d.table, e.ID)
	d.leave(e)
}

// leave ends e's run; its lane goes on.
func (d *dispatcher) leave(e *Entry) {
	d.ended(e)
	e.cancel = nil
	if l := e.lane; !d.draining && (l.key != "" || l.head != nil) {
		d.advance(l)
	}
	d.signalRoom()
}

// hold keeps a nacked entry back until due. It returns false when the entry
// must be released instead, because the drain has begun, and dropped tells that
// there is nothing left to do.
func (d *dispatcher) hold(e *Entry, due time.Time, uncounted bool) (kept, dropped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.lost {
		e.state = settled
		delete(d.table, e.ID)
		d.leave(e)
		return false, true
	}
	if uncounted {
		e.Stored--
	}
	e.Raw, e.msg, e.err, e.cancel = nil, nil, nil, nil
	d.ended(e)
	if d.draining {
		e.state = settled
		return false, false
	}
	e.state, e.due = held, due
	d.heldN++
	l := e.lane
	l.insert(e)
	// What waits behind a delayed entry must not fill the memory.
	for at := e.next; at != nil; at = at.next {
		d.park(at)
	}
	d.advance(l)
	d.signalRoom()
	return true, false
}

// giveBack settles a running entry and those of its key that wait behind it: all
// are to be released, in this order, unless their lease is gone. None of a lane
// that runs is being loaded.
func (d *dispatcher) giveBack(e *Entry) (release []*Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	settle := func(e *Entry) {
		e.state = settled
		e.Raw, e.msg, e.err = nil, nil, nil
		if e.lost {
			delete(d.table, e.ID)
			return
		}
		release = append(release, e)
	}
	settle(e)
	if l := e.lane; !d.draining {
		for next := l.pop(); next != nil; next = l.pop() {
			switch next.state {
			case waiting:
				d.waitingN--
				next.Stored--
			case held:
				d.heldN--
			}
			settle(next)
		}
	}
	d.leave(e)
	return release
}

// unbegun takes back an entry that no handler has received, to be released.
func (d *dispatcher) unbegun(e *Entry) (release bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended(e)
	e.state, e.cancel = settled, nil
	if e.lost {
		delete(d.table, e.ID)
		return false
	}
	e.Stored--
	return true
}

// awaitRoom waits until fetching makes sense and returns how many entries there
// is room for, or false once the drain has begun. It waits for a batch's worth
// rather than for one, unless the workers would run dry. With cautious there is
// room for one, once no suspect is left here.
func (d *dispatcher) awaitRoom(cautious bool) (int, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if d.draining {
			return 0, false
		}
		n := d.roomLocked()
		if cautious && n > 0 {
			if n = 1; d.aloneN+d.suspects.n > 0 {
				n = 0
			}
		}
		if n > 0 {
			return n, true
		}
		d.room.Wait()
	}
}

func (d *dispatcher) roomLocked() int {
	free := d.maxInFlight - d.resident() - d.loads.n
	if d.limit != broker.NoLimit {
		free = min(free, d.limit-d.resident()-d.loads.n)
	}
	if free <= 0 || d.heldN >= d.maxHeld || len(d.acks) > 4*d.maxInFlight+1000 {
		return 0
	}
	if d.ready.n+d.suspects.n <= d.workers || free >= d.maxInFlight/2 {
		return free
	}
	return 0
}

// narrow takes over the gate's limit.
func (d *dispatcher) narrow(limit int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = limit
	d.work.Broadcast()
	d.signalRoom()
	notify(d.wake)
}

// signalWork wakes a worker that waited for the gate: one place has become free.
func (d *dispatcher) signalWork() {
	if d.limit != broker.NoLimit {
		d.work.Signal()
	}
}

// signalRoom tells those who wait for room: the loader with what is due, and the
// fetcher.
func (d *dispatcher) signalRoom() {
	if d.loads.n > 0 && d.resident() < d.maxInFlight {
		notify(d.wake)
	}
	if d.roomLocked() > 0 {
		d.room.Signal()
	}
}

// takeLoads moves what is due into loading and returns it, with the time at
// which the next delayed entry is due (zero: none).
func (d *dispatcher) takeLoads(limit int) (loads []*Entry, refs []Ref, next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	for len(d.delayed) > 0 && !d.delayed[0].due.After(now) {
		e := heap.Pop(&d.delayed).(*Entry)
		d.advance(e.lane)
	}
	if len(d.delayed) > 0 {
		next = d.delayed[0].due
	}
	for len(loads) < limit && d.resident() < d.maxInFlight && d.limit != 0 {
		l := d.loads.pop()
		if l == nil {
			break
		}
		if l.head == nil || l.head.state != held || l.head.due.After(now) {
			d.advance(l)
			continue
		}
		for e, n := l.head, 0; e != nil && n < loadAhead && e.state == held && !e.due.After(now) &&
			(n == 0 || d.resident() < d.maxInFlight); e, n = e.next, n+1 {
			e.state = loading
			e.Stored++
			e.uncounted = e.Left
			d.heldN--
			d.loadingN++
			loads = append(loads, e)
			refs = append(refs, e.ref())
		}
		l.state = laneLoading
	}
	return loads, refs, next
}

// loaded takes back what takeLoads gave. With failed, none was loaded: they are
// held until retryAt. It returns those that must be released.
func (d *dispatcher) loaded(entries []*Entry, raw map[string]any, failed bool, retryAt time.Time) (release []*Entry) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	touched := make([]*lane, 0, len(entries))
	for _, e := range entries {
		l := e.lane
		d.loadingN--
		if !failed {
			if e.Raw = raw[e.ID]; e.Raw == nil {
				e.lost = true
			}
		}
		switch {
		case e.lost:
			l.unlink(e)
			e.state = settled
			delete(d.table, e.ID)
		case d.draining:
			l.unlink(e)
			e.state = settled
			e.Stored--
			release = append(release, e)
			continue
		case failed:
			e.state, e.due = held, retryAt
			e.Stored--
			e.uncounted = false
			d.heldN++
		default:
			e.state, e.renewed = waiting, now
			d.waitingN++
			if l.state == laneDelayed || l.state == laneToLoad {
				d.park(e)
			}
		}
		if len(touched) == 0 || touched[len(touched)-1] != l {
			touched = append(touched, l)
		}
	}
	if d.draining {
		return release
	}
	for _, l := range touched {
		if l.state == laneLoading {
			d.advance(l)
		}
	}
	d.signalRoom()
	return release
}

// stale returns the entries whose lease was not renewed since before, and
// stamps them as renewed now.
func (d *dispatcher) stale(before time.Time) []Ref {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Ref
	for _, e := range d.table {
		if e.state != settled && !e.lost && e.renewed.Before(before) {
			e.renewed = now
			out = append(out, e.ref())
		}
	}
	return out
}

// refs returns the present state of entries that are still held here.
func (d *dispatcher) refs(entries []*Entry) []Ref {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Ref, 0, len(entries))
	for _, e := range entries {
		if d.table[e.ID] == e && e.state != settled && !e.lost {
			out = append(out, e.ref())
		}
	}
	return out
}

// unrenewed marks entries as still to be renewed, after a failure.
func (d *dispatcher) unrenewed(refs []Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range refs {
		if e := d.table[r.ID]; e != nil {
			e.renewed = time.Time{}
		}
	}
}

// lose forgets entries that this consumer no longer owns and cancels those that
// run. It returns how many were lost and how many of them ran.
func (d *dispatcher) lose(ids []string, cause error) (lost, ran int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		e := d.table[id]
		if e == nil || e.lost || e.state == settled {
			continue
		}
		lost++
		e.lost = true
		switch e.state {
		case running:
			ran++
			if e.cancel != nil {
				e.cancel(cause)
			}
			continue
		case loading: // loaded() removes it
			continue
		case waiting:
			d.waitingN--
		case held:
			d.heldN--
			if e.index >= 0 {
				heap.Remove(&d.delayed, e.index)
			}
		}
		l := e.lane
		l.unlink(e)
		e.state = settled
		delete(d.table, e.ID)
		if l.state == laneDelayed && (l.head == nil || l.head.index < 0) {
			d.advance(l)
		}
	}
	d.signalRoom()
	return lost, ran
}

// drain stops handing out and returns every entry that no worker has, to be
// released.
func (d *dispatcher) drain() (release []*Entry) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
	for _, e := range d.table {
		switch e.state {
		case waiting:
			e.Stored--
		case held:
			e.Delay = max(e.due.Sub(now), 0)
			e.index = -1
		default:
			continue
		}
		e.state = settled
		e.Raw, e.msg = nil, nil
		release = append(release, e)
	}
	for _, l := range d.lanes {
		l.head, l.tail = nil, nil
	}
	d.lanes = map[string]*lane{}
	d.ready, d.suspects, d.loads, d.delayed = laneQueue{}, laneQueue{}, laneQueue{}, nil
	d.waitingN, d.heldN = 0, 0
	d.work.Broadcast()
	d.room.Broadcast()
	return release
}

// cancelRunning cancels every running entry and returns how many there are.
func (d *dispatcher) cancelRunning(cause error) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.table {
		if e.state == running && e.cancel != nil {
			e.cancel(cause)
			n++
		}
	}
	return n
}

// takeAcks returns what is to be acked, at most limit.
func (d *dispatcher) takeAcks(limit int) []*Entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(limit, len(d.acks))
	out := d.acks[:n:n]
	if d.acks = d.acks[n:]; len(d.acks) == 0 {
		d.acks = nil
	} else {
		notify(d.acksOn)
	}
	return out
}

// busy tells whether messages run or wait to.
func (d *dispatcher) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runningN+d.ready.n > 1
}

// forget drops entries whose settlement the broker confirmed.
func (d *dispatcher) forget(entries []*Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range entries {
		if d.table[e.ID] == e {
			delete(d.table, e.ID)
		}
	}
	d.signalRoom()
}

// mine tells whether the entry is in this consumer's hands.
func (d *dispatcher) mine(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.table[id]
	return ok
}
