package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// result is what a claim brought.
type result struct {
	entries []*lanes.Entry
	more    bool // there may be more to claim at once
}

// claiming is one claim in the making. It is built anew for each try.
type claiming struct {
	s     *source
	tx    execer
	limit int
	pos   int64 // the group's position
	now   int64

	busy map[uint64]bool // keys that must wait, in an ordered group
	// waiting are the keys of messages that are set aside.
	waiting map[uint64]bool
	aside   int // messages that wait for a key
	dues    []dueClaim

	taken  []item // sorted in the end; counts as to be stored
	bodies map[int64]*row
	left   map[int64]bool // taken from a consumer that may have died of it
	wait   []item         // fresh messages to set aside
	next   int64          // the group's next position
	gaps   []gap          // that the position passes
	late   []int64
	more   bool
}

// dueClaim is a claim whose lease or delay is over.
type dueClaim struct {
	id    int64
	owner string
	items []item
	gone  []item
}

// dueClaims is how many claims that are due one claim looks at.
const dueClaims = 100

// claim makes a claim. It goes on when ctx ends, for a bounded time: what the
// database has given out must reach the caller.
func (s *source) claim(ctx context.Context, limit int) (result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	result, err := s.tryClaim(ctx, limit)
	if errors.Is(err, errForgotten) {
		s.writing.Lock()
		err = s.recover(ctx)
		s.writing.Unlock()
		if err == nil {
			result, err = s.tryClaim(ctx, limit)
		}
	}
	switch {
	case err == nil:
		return result, nil
	case errors.Is(err, errNoGroup), noTable(err):
		return result, s.restore(ctx, err)
	default:
		return result, fmt.Errorf("claim messages of %s: %w", s.t.quoted, err)
	}
}

func (s *source) tryClaim(ctx context.Context, limit int) (result, error) {
	var c *claiming
	var made []newClaim
	err := s.tx(ctx, func(ctx context.Context, tx execer) error {
		c = &claiming{s: s, tx: tx, limit: limit, bodies: make(map[int64]*row), left: make(map[int64]bool)}
		var err error
		made, err = c.run(ctx)
		return err
	})
	if err != nil {
		return result{}, err
	}
	for _, m := range made {
		if m.owner != "" {
			s.took(m.id, m.items)
		}
	}
	s.mu.Lock()
	s.setAside = c.waiting
	s.position = c.next
	s.hasGaps = s.hasGaps || len(c.gaps) > 0
	s.mu.Unlock()
	out := result{more: c.more, entries: make([]*lanes.Entry, len(c.taken))}
	for i, it := range c.taken {
		e := c.bodies[it.off].entry(it.count)
		if e.Left = c.left[it.off]; e.Left {
			e.Stored++
		}
		out.entries[i] = e
	}
	return out, nil
}

var errNoGroup = errors.New("the group's row is gone")

// lockedGroup is what lock found.
type lockedGroup struct {
	position, now int64
	due, gaps     bool
}

// lock keeps other claims of the group out until tx ends.
func (s *source) lock(ctx context.Context, tx execer) (lockedGroup, error) {
	var st lockedGroup
	var nothing string
	err := tx.QueryRowContext(ctx, s.q.lock, s.group.Load()).Scan(&st.position, &st.now, &st.due, &st.gaps, &nothing)
	if errors.Is(err, sql.ErrNoRows) {
		return st, errNoGroup
	} else if err != nil {
		return st, fmt.Errorf("lock the group: %w", err)
	}
	return st, nil
}

// restore makes tables and a group again that someone dropped. The group starts
// at the oldest row.
func (s *source) restore(ctx context.Context, cause error) error {
	s.log.WarnContext(ctx, "a table or the group's row is gone; making it again, from the oldest message on", "error", cause)
	s.b.forget(s.t.topic)
	if _, err := s.b.ensureTopic(ctx, s.t.topic); err != nil {
		return err
	}
	id, err := s.b.ensureGroup(ctx, s.t, s.groupName)
	if err == nil {
		s.group.Store(id)
		s.mu.Lock()
		s.position = 0
		s.mu.Unlock()
	}
	return err
}

func (c *claiming) run(ctx context.Context) ([]newClaim, error) {
	s := c.s
	st, err := s.lock(ctx, c.tx)
	if err != nil {
		return nil, err
	}
	c.pos, c.next, c.now = st.position, st.position, st.now
	s.mu.Lock()
	known := s.position
	s.mu.Unlock()
	if st.position < known {
		return nil, errForgotten
	}
	if st.due {
		if err := c.readDue(ctx); err != nil {
			return nil, err
		}
	}
	if s.order {
		if err := c.readOthers(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.takeDue(ctx); err != nil {
		return nil, err
	}
	if st.gaps {
		if err := c.takeLate(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.takeFresh(ctx); err != nil {
		return nil, err
	}
	return c.store(ctx)
}

// readDue locks the claims that are due. Their owners settle without the group's
// lock; a claim that one is settling at this moment is left out.
func (c *claiming) readDue(ctx context.Context) error {
	rows, err := c.tx.QueryContext(ctx, c.s.q.due, c.s.group.Load(), c.now)
	if err != nil {
		return fmt.Errorf("read the claims that are due: %w", err)
	}
	err = scan(rows, func() error {
		var d dueClaim
		var b sql.RawBytes
		if err := rows.Scan(&d.id, &d.owner, &b); err != nil {
			return err
		}
		var err error
		d.items, err = decodeItems(nil, b)
		c.dues = append(c.dues, d)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the claims that are due: %w", err)
	}
	return nil
}

// readOthers learns the keys that other members have, or that wait for a delay
// to be over.
func (c *claiming) readOthers(ctx context.Context) error {
	c.busy = make(map[uint64]bool)
	due := make(map[int64]bool, len(c.dues))
	for _, d := range c.dues {
		due[d.id] = true
	}
	rows, err := c.tx.QueryContext(ctx, c.s.q.others, c.s.group.Load(), c.s.owner)
	if err != nil {
		return fmt.Errorf("read the keys of other members: %w", err)
	}
	var items []item
	err = scan(rows, func() error {
		var id int64
		var owner string
		var b sql.RawBytes
		if err := rows.Scan(&id, &owner, &b); err != nil {
			return err
		}
		if due[id] {
			return nil
		}
		var err error
		if items, err = decodeItems(items[:0], b); err != nil {
			return err
		}
		for _, it := range items {
			if it.key != 0 {
				c.busy[it.key] = true
			}
		}
		if owner == "" {
			c.aside += len(items)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the keys of other members: %w", err)
	}
	return nil
}

// blocked tells whether a message must wait for its key.
func (c *claiming) blocked(it item) bool { return c.busy != nil && it.key != 0 && c.busy[it.key] }

// passOver leaves a message where it is; what comes later of its key waits too.
func (c *claiming) passOver(it item) {
	if c.busy != nil && it.key != 0 {
		c.busy[it.key] = true
	}
}

func (c *claiming) setAside(it item) {
	c.aside++
	if it.key != 0 {
		if c.waiting == nil {
			c.waiting = make(map[uint64]bool)
		}
		c.waiting[it.key] = true
	}
}

// takeDue takes over what others gave back or left behind, lowest number first.
func (c *claiming) takeDue(ctx context.Context) error {
	type ref struct {
		claim int
		it    item
	}
	var all []ref
	for i, d := range c.dues {
		for _, it := range d.items {
			all = append(all, ref{i, it})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b ref) int { return int(min(max(a.it.off-b.it.off, -1), 1)) })
	take := make([]ref, 0, min(len(all), c.limit))
	for _, r := range all {
		switch {
		case len(take) == c.limit:
			c.more = true
			c.passOver(r.it)
		case c.s.mine(entryID(r.it.off)), c.blocked(r.it):
			c.passOver(r.it)
			c.setAside(r.it)
		default:
			take = append(take, r)
		}
	}
	c.more = c.more || len(c.dues) == dueClaims && len(take) > 0
	offs := make([]int64, len(take))
	for i, r := range take {
		offs[i] = r.it.off
	}
	bodies, err := c.s.bodies(ctx, c.tx, offs)
	if err != nil {
		return err
	}
	deleted := 0
	for _, r := range take {
		d := &c.dues[r.claim]
		d.gone = append(d.gone, r.it)
		body := bodies[r.it.off]
		if body == nil {
			deleted++
			continue
		}
		if d.owner != "" || r.it.count+1 >= broker.DefaultSuspectFrom {
			// Its present delivery goes on record when it begins: what waited
			// beside the one that killed its consumer is not counted with it.
			c.left[r.it.off] = true
		} else {
			r.it.count++
		}
		if c.s.order && r.it.key == 0 {
			r.it.key = body.key()
		}
		c.taken = append(c.taken, r.it)
		c.bodies[r.it.off] = body
	}
	if deleted > 0 {
		c.s.reportDeleted(ctx, deleted)
	}
	return nil
}

// take decides over messages that nobody had yet. It returns how many it dealt
// with.
func (c *claiming) take(rows []*row) int {
	for i, r := range rows {
		it := item{off: r.off, count: 1}
		if c.s.order {
			it.key = r.key()
		}
		if c.blocked(it) {
			if c.aside >= c.s.b.cfg.MaxHeld {
				return i
			}
			it.count = 0
			c.wait = append(c.wait, it)
			c.setAside(it)
			continue
		}
		c.taken = append(c.taken, it)
		c.bodies[r.off] = r
	}
	return len(rows)
}

// takeFresh takes what lies beyond the group's position.
func (c *claiming) takeFresh(ctx context.Context) error {
	room := c.limit - len(c.taken)
	if room <= 0 || c.aside >= c.s.b.cfg.MaxHeld {
		return nil
	}
	rows, err := c.s.rows(ctx, c.tx, c.s.q.fresh, c.pos, room)
	if err != nil {
		return err
	}
	n := c.take(rows)
	prev := c.pos
	for _, r := range rows[:n] {
		if c.s.d.gaps && r.off > prev+1 {
			c.gaps = append(c.gaps, gap{first: prev + 1, last: r.off - 1, seen: c.now})
		}
		prev = r.off
	}
	c.next = prev
	c.more = c.more || len(rows) == room && n == len(rows)
	return nil
}

// store writes the claim.
func (c *claiming) store(ctx context.Context) ([]newClaim, error) {
	s := c.s
	sortItems(c.taken)
	var made []newClaim
	for part := range slices.Chunk(c.taken, claimItems) {
		made = append(made, newClaim{id: newID(), owner: s.owner, items: slices.Clone(part), until: s.lease})
	}
	if err := c.shrinkDue(ctx); err != nil {
		return nil, err
	}
	if len(c.wait) > 0 {
		sortItems(c.wait)
		for part := range slices.Chunk(c.wait, claimLimit) {
			made = append(made, newClaim{id: newID(), items: part})
		}
	}
	if err := c.storeGaps(ctx); err != nil {
		return nil, err
	}
	move := `UPDATE headrace_sql_groups SET position = ? WHERE id = ?`
	if c.next != c.pos && len(made) > 0 && s.d.combined {
		q, args := s.insertClaimsQuery(made)
		_, err := s.exec(ctx, c.tx, `WITH i AS (`+q+`) `+move, append(args, c.next, s.group.Load())...)
		return made, err
	}
	if err := s.insertClaims(ctx, c.tx, made); err != nil {
		return nil, err
	}
	if c.next != c.pos {
		if _, err := s.exec(ctx, c.tx, move, c.next, s.group.Load()); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// shrinkDue takes what was taken out of the due claims. Small rests without an
// owner become one claim, so that messages which wait for a key don't end in a
// row each.
func (c *claiming) shrinkDue(ctx context.Context) error {
	s := c.s
	rests := 0
	for _, d := range c.dues {
		if d.owner == "" && len(d.gone) < len(d.items) && len(d.items) < claimLimit/2 {
			rests++
		}
	}
	merge := rests > 8
	for _, d := range c.dues {
		small := d.owner == "" && len(d.items) < claimLimit/2
		if len(d.gone) == 0 && (!merge || !small) {
			continue
		}
		var left []item
		for _, it := range d.items {
			if !slices.ContainsFunc(d.gone, func(g item) bool { return g.off == it.off }) {
				left = append(left, it)
			}
		}
		if merge && small {
			c.wait = append(c.wait, left...)
			left = nil
		}
		var err error
		if len(left) == 0 {
			_, err = s.exec(ctx, c.tx, `DELETE FROM headrace_sql_claims WHERE id = ?`, d.id)
		} else {
			_, err = s.exec(ctx, c.tx, `UPDATE headrace_sql_claims SET entries = ?, n = ?, first_offset = ? WHERE id = ?`,
				encodeItems(left), len(left), left[0].off, d.id)
		}
		if err != nil {
			return fmt.Errorf("take over a claim: %w", err)
		}
	}
	return nil
}
