package outbox

import (
	"math"
	"sort"
)

// block says from which offset on a key's rows have to wait: behind a row that
// is held back, and behind one that is parked.
type block struct{ held, parked int64 }

// never is the offset of no row.
const never = math.MaxInt64

// arrange puts a claim's rows in the order of publishing: the held rows that are
// due, then the ready ones. Rows that are behind a row of their key that is not
// due (true in behind: that is parked) are taken out and returned by that, to be
// held back with it. When there may be more due rows than limit, ready ones
// would overtake them and wait for the next claim.
func arrange(ready, due []row, blocked map[string]block, limit int) (batch []row, behind map[bool][]int64) {
	sort.Slice(due, func(i, j int) bool { return due[i].offset < due[j].offset })
	all := due
	if len(due) < limit {
		all = append(due, ready...)
	}
	batch = make([]row, 0, len(all))
	for _, r := range all {
		b, is := blocked[r.key]
		if r.key == "" || !is || r.offset < b.held && r.offset < b.parked {
			batch = append(batch, r)
			continue
		}
		if behind == nil {
			behind = map[bool][]int64{}
		}
		parked := r.offset >= b.parked
		behind[parked] = append(behind[parked], r.offset)
	}
	return batch, behind
}
