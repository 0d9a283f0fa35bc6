package lanes

import (
	"cmp"
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Pos is an entry's place in its topic. Entries of one key are handed out from
// the lowest.
type Pos struct{ Hi, Lo uint64 }

// Less tells whether p comes before q.
func (p Pos) Less(q Pos) bool { return p.Hi < q.Hi || p.Hi == q.Hi && p.Lo < q.Lo }

// Compare is negative where p comes before q, positive where it comes after.
func (p Pos) Compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.Hi, q.Hi), cmp.Compare(p.Lo, q.Lo))
}

// Entry is one message that this consumer owns at the broker. The exported
// fields are the adapter's: it sets ID, Pos, Stored and Raw when it fetches one,
// and reads them when it settles or decodes one.
type Entry struct {
	// ID identifies the entry within its subscription.
	ID string
	// Pos is its place in the topic.
	Pos Pos
	// Stored is how many deliveries the broker has, or should have, on record.
	// While the entry is resident it counts the present delivery too.
	Stored int
	// Raw is the body as the broker gave it. It is nil while the entry is held.
	Raw any
	// Left says that a consumer left the entry behind, and, unless the broker counts
	// itself, that the broker's record is without the present delivery: it is written
	// when a worker takes the entry, so that a crash counts against what ran and not
	// against what waited.
	Left bool
	// Delay is how long a released entry should stay out of everybody's reach.
	Delay time.Duration

	key   string
	msg   *message.Message
	err   error
	state state
	lost  bool
	// uncounted: the record is still without the present delivery.
	uncounted bool
	alone     bool // it runs as the one suspect
	renewed   time.Time
	due       time.Time
	index     int // in the heap of delayed entries; -1 when not there
	cancel    context.CancelCauseFunc

	lane *lane
	next *Entry
	own  lane // the lane of an entry without a key
}

// Position returns e.Pos.
func (e *Entry) Position() Pos { return e.Pos }

func (e *Entry) ref() Ref {
	stored := e.Stored
	if e.uncounted {
		stored--
	}
	return Ref{ID: e.ID, Pos: e.Pos, Stored: max(stored, 0)}
}

type state uint8

const (
	waiting state = iota // resident, in its lane
	running              // with a worker
	held                 // in its lane, body dropped
	loading              // in its lane, body on its way
	settled              // acked or released, not yet confirmed by the broker
)

// lane is the queue of one key, sorted by position. The running entry is not
// in it.
type lane struct {
	key        string
	head, tail *Entry
	state      laneState
	next       *lane // in the ready or the load queue
}

type laneState uint8

const (
	laneIdle laneState = iota
	laneReady
	laneRunning
	laneDelayed // its head waits in the heap
	laneToLoad  // its head is due, its body is not here
	laneLoading
)

// insert puts e in its place.
func (l *lane) insert(e *Entry) {
	switch {
	case l.head == nil:
		e.next, l.head, l.tail = nil, e, e
	case !e.Pos.Less(l.tail.Pos):
		e.next, l.tail.next, l.tail = nil, e, e
	case e.Pos.Less(l.head.Pos):
		e.next, l.head = l.head, e
	default:
		at := l.head
		for at.next != nil && !e.Pos.Less(at.next.Pos) {
			at = at.next
		}
		e.next, at.next = at.next, e
	}
}

// pop removes the head.
func (l *lane) pop() *Entry {
	e := l.head
	if e == nil {
		return nil
	}
	l.head, e.next = e.next, nil
	if l.head == nil {
		l.tail = nil
	}
	return e
}

// unlink removes e wherever it is.
func (l *lane) unlink(e *Entry) {
	if l.head == e {
		l.pop()
		return
	}
	for at := l.head; at != nil; at = at.next {
		if at.next == e {
			at.next, e.next = e.next, nil
			if l.tail == e {
				l.tail = at
			}
			return
		}
	}
}

// laneQueue is a FIFO of lanes.
type laneQueue struct {
	head, tail *lane
	n          int
}

func (q *laneQueue) push(l *lane) {
	l.next = nil
	if q.tail == nil {
		q.head = l
	} else {
		q.tail.next = l
	}
	q.tail = l
	q.n++
}

func (q *laneQueue) pop() *lane {
	l := q.head
	if l == nil {
		return nil
	}
	q.head, l.next = l.next, nil
	if q.head == nil {
		q.tail = nil
	}
	q.n--
	return l
}

// dueHeap orders delayed entries by when they are due.
type dueHeap []*Entry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *dueHeap) Push(x any) {
	e := x.(*Entry)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}
