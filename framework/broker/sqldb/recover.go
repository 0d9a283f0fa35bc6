package sqldb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// errForgotten tells that the group's position is below where this member left
// it: the server forgot claims in a crash, or an operator set the group back.
var errForgotten = errors.New("the group's position went back")

// recover compares this member's claims with the database. A claim that is not
// there was either taken over by another member: then it is lost. Or the server
// has forgotten it in a crash, together with the position that it moved: then it
// is made again as it was, and the numbers around it become gaps, in which every
// member finds what is not claimed. It is called with writing held.
func (s *source) recover(ctx context.Context) error {
	var again []*claimed
	var lost []int64
	var position int64
	err := s.tx(ctx, func(ctx context.Context, tx execer) error {
		st, err := s.lock(ctx, tx)
		if err != nil {
			return err
		}
		claims := s.claims()
		ids := make([]int64, len(claims))
		for i, c := range claims {
			ids[i] = c.id
		}
		there, err := s.owned(ctx, tx, ids, "")
		if err != nil {
			return err
		}
		again, lost, position = nil, nil, st.position
		var kept []item
		for _, c := range claims {
			if there[c.id] {
				continue
			}
			fresh := &claimed{id: newID()}
			for _, it := range c.items {
				// Without gaps the position is never forgotten: what lies above it was set
				// back by an operator.
				if it.off > st.position && s.d.name == sqltx.Postgres {
					fresh.items = append(fresh.items, it)
				} else {
					lost = append(lost, it.off)
				}
			}
			if len(fresh.items) > 0 {
				again = append(again, fresh)
				kept = append(kept, fresh.items...)
			}
		}
		if len(kept) == 0 {
			return nil
		}
		made := make([]newClaim, len(again))
		for i, c := range again {
			made[i] = newClaim{id: c.id, owner: s.owner, items: c.items, until: s.lease}
		}
		if err := s.insertClaims(ctx, tx, made); err != nil {
			return err
		}
		sortItems(kept)
		position = kept[len(kept)-1].off
		around := gap{first: st.position + 1, last: position, seen: st.now}
		offs := make([]int64, len(kept))
		for i, it := range kept {
			offs[i] = it.off
		}
		rest, _ := around.without(offs)
		if err := s.insertGaps(ctx, tx, rest); err != nil {
			return err
		}
		_, err = s.exec(ctx, tx, `UPDATE headrace_sql_groups SET position = ? WHERE id = ?`, position, s.group.Load())
		return err
	})
	if err != nil {
		return fmt.Errorf("compare the claims of %s with the database: %w", s.t.quoted, err)
	}
	s.mu.Lock()
	s.position = position
	for _, off := range lost {
		delete(s.at, off)
	}
	s.hasGaps = true
	s.mu.Unlock()
	for _, c := range again {
		s.took(c.id, c.items)
	}
	if len(again) > 0 {
		s.log.WarnContext(ctx, "the database had forgotten claims, in a crash as it seems; they are made again", "claims", len(again))
	}
	return nil
}

// claims are this member's, sorted by id.
func (s *source) claims() []*claimed {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[*claimed]struct{})
	var out []*claimed
	for _, c := range s.at {
		if _, twice := seen[c]; !twice {
			seen[c] = struct{}{}
			out = append(out, &claimed{id: c.id, items: c.items})
		}
	}
	slices.SortFunc(out, func(a, b *claimed) int { return int(min(max(a.id-b.id, -1), 1)) })
	return out
}
