package memory

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// topic is a log and the groups that read it.
type topic struct {
	retain int

	mu     sync.Mutex
	log    []*record // sorted by pos; deleted records are gone
	last   uint64    // the newest pos ever given
	groups map[string]*group
}

// record is one message in the log. All fields but gone never change.
type record struct {
	pos  uint64
	at   time.Time
	msg  *message.Message
	gone bool // deleted
}

// group is one group's place in a topic. The topic's mutex guards it.
type group struct {
	cursor  uint64 // the newest pos that was handed out
	pending map[uint64]*record
	back    []returned    // given back, sorted by pos
	changed chan struct{} // closed and replaced when there may be something
}

// returned is a message that a consumer gave back.
type returned struct {
	rec    *record
	stored int
	due    time.Time
}

func newTopic(retain int) *topic {
	return &topic{retain: retain, groups: make(map[string]*group)}
}

// group returns the group and creates it at the start of the log.
func (t *topic) group(name string) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[name]
	if g == nil {
		g = &group{pending: make(map[uint64]*record), changed: make(chan struct{})}
		t.groups[name] = g
	}
	return g
}

func (g *group) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (t *topic) append(msgs []*message.Message) {
	now := time.Now().UTC()
	records := make([]*record, len(msgs))
	for i, m := range msgs {
		records[i] = &record{at: now, msg: clone(m.UUID, m.Payload, m.Metadata)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range records {
		t.last++
		r.pos = t.last
	}
	t.log = append(t.log, records...)
	for _, g := range t.groups {
		g.wake()
	}
	if len(t.groups) == 0 {
		t.trim()
	}
}

// after returns the index of the first record beyond pos.
func (t *topic) after(pos uint64) int {
	return sort.Search(len(t.log), func(i int) bool { return t.log[i].pos > pos })
}

// trim drops the oldest records beyond what is retained. What a group has not
// acked stays. It waits for some slack, so that its cost is shared by many.
func (t *topic) trim() {
	if len(t.log) <= t.retain+t.retain/8 {
		return
	}
	settled := t.last
	for _, g := range t.groups {
		settled = min(settled, g.cursor)
		for pos := range g.pending {
			settled = min(settled, pos-1)
		}
	}
	n := min(len(t.log)-t.retain, t.after(settled))
	t.log = slices.Delete(t.log, 0, n)
}

// remove deletes records by pos and returns how many there were.
func (t *topic) remove(gone map[uint64]bool) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = slices.DeleteFunc(t.log, func(r *record) bool {
		if gone[r.pos] {
			r.gone = true
			n++
		}
		return gone[r.pos]
	})
	for _, g := range t.groups {
		for pos := range gone {
			delete(g.pending, pos)
		}
		g.back = slices.DeleteFunc(g.back, func(b returned) bool { return b.rec.gone })
	}
	return n
}
