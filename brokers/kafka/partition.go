package kafka

import (
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// item is a message that is not settled. Guarded by source.mu.
type item struct {
	offset int64
	rec    *kgo.Record // nil until it was read
	key    string      // ordering key
	id     string      // while it is in hand: of this hand-out
	part   *part       // nil once the partition is another member's
	count  int         // deliveries that a handler got
	mark   int         // the count that has to be on record
	due    time.Time

	// holder is the member that has it in hand, where another owns the partition. Of
	// what is in hand here it is this one, from when the partition is handed on.
	holder string
	until  time.Time
	// settled and back are what this member, as the holder, has to tell.
	settled, back bool
	told          time.Time // when that was told
}

// part is a partition that this member owns. Guarded by source.mu.
type part struct {
	n     int32
	next  int64   // behind the last message that was admitted; -1: none is known
	items []*item // by offset
	queue []*kgo.Record
	unread,
	changes, sent int
	record string    // what the last commit that is known wrote
	lostAt time.Time // when the group was lost; zero: it is ours
	going  bool      // it is being handed on: nothing more is handed out
}

// find returns the item at an offset.
func (p *part) find(offset int64) *item {
	i, ok := slices.BinarySearchFunc(p.items, offset, func(it *item, o int64) int { return int(min(max(it.offset-o, -1), 1)) })
	if !ok {
		return nil
	}
	return p.items[i]
}

// remove settles an item.
func (p *part) remove(it *item) {
	i := slices.Index(p.items, it)
	if i >= 0 {
		p.items = slices.Delete(p.items, i, i+1)
		p.changes++
		if it.rec == nil {
			p.unread--
		}
	}
}

// base is the offset to commit: nothing before it is unsettled.
func (p *part) base() int64 {
	if len(p.items) > 0 {
		return p.items[0].offset
	}
	return p.next
}

// ledger is what to commit beside base.
func (p *part) ledger() ledger {
	l := ledger{next: p.next, notes: make([]note, len(p.items))}
	for i, it := range p.items {
		l.notes[i] = note{offset: it.offset, count: it.mark, due: it.due, holder: it.holder, until: it.until}
	}
	return l
}

// restore makes a partition of what its ledger says.
func restore(n int32, l ledger, known bool) *part {
	p := &part{n: n, next: -1}
	if !known {
		return p
	}
	p.next = l.next
	for _, e := range l.notes {
		p.items = append(p.items, &item{
			offset: e.offset, part: p, count: e.count, mark: e.count, due: e.due, holder: e.holder, until: e.until,
		})
	}
	p.unread = len(p.items)
	p.record = record(p.base(), l.encode(p.base()))
	return p
}

// record identifies a commit.
func record(base int64, metadata string) string { return strconv.FormatInt(base, 10) + " " + metadata }

// take takes a record in that was read. It returns the items that Kafka holds no
// more.
func (p *part) take(r *kgo.Record) (used bool, gone []*item) {
	for i := 0; p.unread > 0 && i < len(p.items) && p.items[i].offset < r.Offset; {
		if it := p.items[i]; it.rec == nil {
			gone = append(gone, it)
			p.remove(it)
			continue
		}
		i++
	}
	if p.next < 0 {
		p.next = r.Offset
		p.changes++
	}
	if r.Offset < p.next {
		it := p.find(r.Offset)
		if it == nil || it.rec != nil {
			return false, gone
		}
		it.rec, it.key = r, orderingKey(r)
		p.unread--
		return true, gone
	}
	if n := len(p.queue); n > 0 && p.queue[n-1].Offset >= r.Offset {
		return false, gone
	}
	p.queue = append(p.queue, r)
	return true, gone
}

// choose returns up to limit items that can be handed out, and admits new ones.
// Of one key none is chosen while an earlier one waits or is held elsewhere.
func (p *part) choose(limit int, order bool, now time.Time, removed func(offset int64) bool) []*item {
	var chosen []*item
	var blocked map[string]bool
	consider := func(it *item) {
		free := it.rec != nil && len(chosen) < limit && !it.due.After(now) && (it.holder == "" || now.After(it.until))
		if order && it.key != "" {
			free = free && !blocked[it.key]
			if !free {
				if blocked == nil {
					blocked = make(map[string]bool)
				}
				blocked[it.key] = true
			}
		}
		if free {
			chosen = append(chosen, it)
		}
	}
	for _, it := range p.items {
		if it.id == "" {
			consider(it)
		}
	}
	if order && p.unread > 0 {
		return p.admitted(chosen) // what is unread has a key that nobody knows yet
	}
	for len(p.queue) > 0 && len(p.items) < MaxUnsettled && len(chosen) < limit {
		r := p.queue[0]
		p.queue[0], p.queue = nil, p.queue[1:]
		p.next = r.Offset + 1
		p.changes++
		if r.Attrs.IsControl() || removed(r.Offset) {
			continue
		}
		it := &item{offset: r.Offset, rec: r, key: orderingKey(r), part: p}
		p.items = append(p.items, it)
		consider(it)
	}
	return p.admitted(chosen)
}

// admitted has the first delivery of what is chosen on record before it is handed
// out. A later one is written when a handler gets it.
func (p *part) admitted(chosen []*item) []*item {
	for _, it := range chosen {
		if it.holder != "" {
			it.holder, it.until = "", time.Time{}
			p.changes++
		}
		if it.mark == 0 {
			it.mark = 1
			p.changes++
		}
	}
	return chosen
}
