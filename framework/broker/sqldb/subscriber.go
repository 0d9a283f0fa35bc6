package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	// claimItems is how many messages one row of the claims holds at most.
	claimItems = 128
	// claimLimit is how many messages one transaction claims at most.
	claimLimit = 1000
	// claimTimeout bounds a claim. It is not the subscription's context that ends
	// it: a claim that the server has committed must reach the caller.
	claimTimeout = 10 * time.Second
	// idsPerStatement bounds the ids in one statement.
	idsPerStatement = 500
)

// claimed is a claim that this member owns: its row in the claims.
type claimed struct {
	id    int64
	items []item // not settled, sorted by number
}

// source is one member of one group on one topic.
type source struct {
	b     *Broker
	d     *dialect
	t     table
	q     queries
	group atomic.Int64 // its id
	owner string
	lease time.Duration
	order bool
	log   *slog.Logger

	groupName string

	woken  chan struct{}
	leave  func()
	stop   context.CancelFunc
	upkeep sync.WaitGroup

	// Fetch's own.
	mine  func(id string) bool
	eager bool // the last claim was full, or made room: there may be more

	// writing serialises what rewrites the entries of claims, so that an older
	// state never overwrites a newer one.
	writing sync.Mutex

	mu       sync.Mutex
	at       map[int64]*claimed // by number
	position int64              // of the group, after this member's last claim
	setAside map[uint64]bool    // keys for which messages waited at the last claim
	hasGaps  bool
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if cfg.Topic == "" {
		return nil, fmt.Errorf("the topic has no name")
	}
	t, err := b.ensureTopic(ctx, cfg.Topic)
	if err != nil {
		return nil, err
	}
	id, err := b.ensureGroup(ctx, t, cfg.Group)
	if err != nil {
		return nil, err
	}
	s := &source{
		b: b, d: b.d, t: t, q: newQueries(b.d, t), groupName: cfg.Group,
		// Unique whatever the consumer is called, so that a claim which outlived its
		// member is never taken for one's own.
		owner: cfg.Consumer + "/" + uuid.NewString(),
		lease: cfg.Lease, order: cfg.Order,
		log:  cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		mine: func(string) bool { return false },
		at:   make(map[int64]*claimed),
	}
	s.group.Store(id)
	if err := s.checkNumbers(ctx); err != nil {
		return nil, err
	}
	s.woken, s.leave = b.wake.join(t)
	upkeep, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.upkeep.Go(func() { s.maintain(upkeep) })
	return s, nil
}

// Reclaim only learns what this member has: Fetch takes over what others left,
// since order needs both decided at once.
func (s *source) Reclaim(_ context.Context, _ int, mine func(string) bool) ([]*lanes.Entry, error) {
	s.mine = mine
	return nil, nil
}

// Fetch claims what is due: messages that were given back or whose member died,
// those set aside whose key is free, those that turned up in a gap, then new
// ones. It waits for a wake-up or the poll interval once.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	limit = min(limit, claimLimit)
	for waited := false; ; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		look, wait := s.eager, s.b.cfg.PollInterval
		if !look {
			var err error
			if look, wait, err = s.probe(ctx); err != nil {
				return nil, err
			}
		}
		if look {
			got, err := s.claim(ctx, limit)
			if err != nil {
				s.eager = false
				return nil, err
			}
			s.eager = got.more
			if len(got.entries) > 0 {
				return got.entries, nil
			}
			if got.more {
				continue
			}
		}
		if waited {
			return nil, nil
		}
		waited = true
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-s.woken:
			waited = false
		case <-timer.C:
		}
		timer.Stop()
	}
}

// probe looks without a lock whether there is something to claim, and else for
// how long to wait.
func (s *source) probe(ctx context.Context) (ready bool, wait time.Duration, err error) {
	var due int64
	var fresh, late, gaps bool
	id := s.group.Load()
	err = s.b.db.QueryRowContext(ctx, s.q.probe, id, id, id, id, id).Scan(&due, &fresh, &late, &gaps)
	if err != nil {
		if errors.Is(err, sql.ErrNoRows) || noTable(err) {
			return false, s.b.cfg.PollInterval, s.restore(ctx, err)
		}
		return false, 0, fmt.Errorf("look for messages in %s: %w", s.t.quoted, err)
	}
	s.note(gaps)
	wait = s.b.cfg.PollInterval
	if due > 0 {
		wait = min(wait, time.Duration(due)*time.Microsecond)
	}
	return fresh || late || due <= 0, max(wait, time.Millisecond), nil
}

func (s *source) note(gaps bool) {
	s.mu.Lock()
	s.hasGaps = s.hasGaps || gaps
	s.mu.Unlock()
}

func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	r, ok := e.Raw.(*row)
	if !ok {
		return nil, fmt.Errorf("sqldb: entry %s has no body", e.ID)
	}
	return r.decode()
}

func (s *source) Malformed(e *lanes.Entry) *message.Message {
	if r, ok := e.Raw.(*row); ok {
		return r.raw()
	}
	return message.NewMessage(e.ID, nil)
}

// Ack takes entries out of their claims: one statement that deletes the claims
// with nothing left and one that rewrites the others; on Postgres both in one.
func (s *source) Ack(ctx context.Context, entries []*lanes.Entry) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	changes := s.without(numbers(entries))
	missing, err := s.write(ctx, changes)
	if err == nil && missing > 0 {
		if err = s.recover(ctx); err == nil {
			changes = s.without(numbers(entries))
			_, err = s.write(ctx, changes)
		}
	}
	if err != nil {
		return fmt.Errorf("ack %d messages of %s: %w", len(entries), s.t.quoted, err)
	}
	freed := s.frees(changes)
	s.apply(changes)
	if freed {
		s.b.wake.everywhere(s.t.name)
	}
	return nil
}

// frees tells whether the changes leave this member without a key for which
// messages were set aside.
func (s *source) frees(changes []change) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.setAside) == 0 {
		return false
	}
	gone := make(map[int64]struct{})
	freed := make(map[uint64]struct{})
	for _, ch := range changes {
		for _, off := range ch.gone {
			gone[off] = struct{}{}
			if i, ok := ch.claim.index(off); ok {
				if key := ch.claim.items[i].key; s.setAside[key] {
					freed[key] = struct{}{}
				}
			}
		}
	}
	if len(freed) == 0 {
		return false
	}
	for off, c := range s.at {
		if _, out := gone[off]; out {
			continue
		}
		if i, ok := c.index(off); ok {
			delete(freed, c.items[i].key)
		}
	}
	for key := range freed {
		delete(s.setAside, key) // once
	}
	return len(freed) > 0
}

// Renew extends the leases of the claims and writes the counts.
func (s *source) Renew(ctx context.Context, refs []lanes.Ref) (lost []string, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.renew(ctx, refs)
}

func (s *source) renew(ctx context.Context, refs []lanes.Ref) (lost []string, err error) {
	ids := s.claimIDs(refs)
	for part := range slices.Chunk(ids, idsPerStatement) {
		n, err := s.extend(ctx, part)
		if err != nil {
			return nil, fmt.Errorf("renew %d leases on %s: %w", len(refs), s.t.quoted, err)
		}
		if n != int64(len(part)) {
			if err := s.recover(ctx); err != nil {
				return nil, err
			}
		}
	}
	changes, lost := s.recounted(refs)
	if _, err := s.write(ctx, changes); err != nil {
		return lost, fmt.Errorf("write delivery counts on %s: %w", s.t.quoted, err)
	}
	s.apply(changes)
	return lost, nil
}

func (s *source) extend(ctx context.Context, ids []int64) (int64, error) {
	defer s.b.writer()()
	return s.exec(ctx, s.b.db, s.d.fill(`UPDATE {claims} SET locked_until = {now} + ? WHERE owner = ? AND id IN `, s.t)+in(len(ids)),
		append([]any{s.lease.Microseconds(), s.owner}, anys(ids)...)...)
}

// Load reads bodies again, writes counts and extends leases.
func (s *source) Load(ctx context.Context, refs []lanes.Ref) (map[string]any, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	lost, err := s.renew(ctx, refs)
	if err != nil {
		return nil, err
	}
	offs := make([]int64, 0, len(refs))
	for _, r := range refs {
		if !slices.Contains(lost, r.ID) {
			offs = append(offs, int64(r.Pos.Lo))
		}
	}
	rows, err := s.bodies(ctx, s.b.db, offs)
	if err != nil {
		return nil, err
	}
	raw := make(map[string]any, len(rows))
	var gone []int64
	for _, off := range offs {
		if r := rows[off]; r != nil {
			raw[entryID(off)] = r
		} else {
			gone = append(gone, off)
		}
	}
	if len(gone) > 0 {
		s.reportDeleted(ctx, len(gone))
		changes := s.without(gone)
		if _, err := s.write(ctx, changes); err != nil {
			return nil, err
		}
		s.apply(changes)
	}
	return raw, nil
}

func (s *source) reportDeleted(ctx context.Context, n int) {
	s.log.WarnContext(ctx, "messages were deleted from the table before they were settled; they are cleared", "messages", n)
}

// Release moves entries into claims without an owner, due when their delay is
// over.
func (s *source) Release(ctx context.Context, entries []*lanes.Entry) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	changes := s.without(numbers(entries))
	if len(changes) == 0 {
		return nil
	}
	err := s.tx(ctx, func(ctx context.Context, tx execer) error {
		ids := make([]int64, len(changes))
		for i, c := range changes {
			ids[i] = c.claim.id
		}
		owned, err := s.owned(ctx, tx, ids, s.forUpdate())
		if err != nil {
			return err
		}
		byDelay := make(map[time.Duration][]item)
		for _, e := range entries {
			off := int64(e.Pos.Lo)
			c, it, ok := s.find(off)
			if ok && owned[c.id] {
				delay := max(e.Delay, 0).Round(time.Millisecond)
				byDelay[delay] = append(byDelay[delay], item{off: off, count: max(e.Stored, 0), key: it.key})
			}
		}
		if _, err := s.writeOn(ctx, tx, changes); err != nil {
			return err
		}
		var fresh []newClaim
		for delay, items := range byDelay {
			sortItems(items)
			for part := range slices.Chunk(items, claimItems) {
				fresh = append(fresh, newClaim{items: part, until: delay})
			}
		}
		return s.insertClaims(ctx, tx, fresh)
	})
	if err != nil {
		return fmt.Errorf("release %d messages of %s: %w", len(entries), s.t.quoted, err)
	}
	s.apply(changes)
	s.b.wake.everywhere(s.t.name)
	return nil
}

// Close leaves the group. What is still claimed comes back with its lease.
func (s *source) Close(context.Context) error {
	s.stop()
	s.leave()
	s.upkeep.Wait()
	return nil
}

// forUpdate ends a SELECT whose rows must stay as they are.
func (s *source) forUpdate() string {
	if s.d.lockRows == "" {
		return ""
	}
	return " FOR UPDATE"
}

// find returns the claim of a number and its item.
func (s *source) find(off int64) (*claimed, item, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.at[off]
	if c == nil {
		return nil, item{}, false
	}
	i, ok := c.index(off)
	if !ok {
		return nil, item{}, false
	}
	return c, c.items[i], true
}

func (c *claimed) index(off int64) (int, bool) {
	return slices.BinarySearchFunc(c.items, off, func(it item, off int64) int {
		switch {
		case it.off < off:
			return -1
		case it.off > off:
			return 1
		default:
			return 0
		}
	})
}

func numbers(entries []*lanes.Entry) []int64 {
	offs := make([]int64, len(entries))
	for i, e := range entries {
		offs[i] = int64(e.Pos.Lo)
	}
	return offs
}

func (s *source) claimIDs(refs []lanes.Ref) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[int64]struct{})
	var ids []int64
	for _, r := range refs {
		if c := s.at[int64(r.Pos.Lo)]; c != nil {
			if _, twice := seen[c.id]; !twice {
				seen[c.id] = struct{}{}
				ids = append(ids, c.id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// change is the next state of a claim.
type change struct {
	claim *claimed
	left  []item
	gone  []int64
}

// without returns the claims of the messages as they are without them. Messages
// that this member no longer has are left out.
func (s *source) without(offs []int64) []change {
	s.mu.Lock()
	defer s.mu.Unlock()
	byClaim := make(map[*claimed][]int64)
	for _, off := range offs {
		if c := s.at[off]; c != nil {
			byClaim[c] = append(byClaim[c], off)
		}
	}
	changes := make([]change, 0, len(byClaim))
	for c, gone := range byClaim {
		ch := change{claim: c, gone: gone}
		if len(gone) < len(c.items) {
			slices.Sort(gone)
			ch.left = make([]item, 0, len(c.items)-len(gone))
			for _, it := range c.items {
				if _, found := slices.BinarySearch(gone, it.off); !found {
					ch.left = append(ch.left, it)
				}
			}
		}
		changes = append(changes, ch)
	}
	// One order for all, so that statements don't wait for each other in a circle.
	slices.SortFunc(changes, func(a, b change) int { return int(min(max(a.claim.id-b.claim.id, -1), 1)) })
	return changes
}

// recounted returns the claims whose counts on record are not those of the refs,
// and the ids of what this member no longer has.
func (s *source) recounted(refs []lanes.Ref) (changes []change, lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[*claimed][]item)
	for _, r := range refs {
		off := int64(r.Pos.Lo)
		c := s.at[off]
		if c == nil {
			lost = append(lost, r.ID)
			continue
		}
		i, ok := c.index(off)
		if want := max(r.Stored, 0); ok && c.items[i].count != want {
			if next[c] == nil {
				next[c] = slices.Clone(c.items)
			}
			next[c][i].count = want
		}
	}
	for c, items := range next {
		changes = append(changes, change{claim: c, left: items})
	}
	return changes, lost
}

// apply makes changes that the database has part of the state here.
func (s *source) apply(changes []change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range changes {
		ch.claim.items = ch.left
		for _, off := range ch.gone {
			if s.at[off] == ch.claim {
				delete(s.at, off)
			}
		}
	}
}

// took notes a claim that was just made.
func (s *source) took(id int64, items []item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &claimed{id: id, items: items}
	for _, it := range items {
		if old := s.at[it.off]; old != nil && old != c {
			if i, ok := old.index(it.off); ok {
				old.items = slices.Delete(slices.Clone(old.items), i, i+1)
			}
		}
		s.at[it.off] = c
	}
}

func entryID(off int64) string { return strconv.FormatInt(off, 10) }
