package outbox

import "sort"

// arrange puts a claim's rows in the order of publishing: the held rows that are
// due, then the ready ones. Rows whose key is blocked by a row that is not due
// (true in blocked: by a parked one) are taken out and returned by that, to be
// held back with it. When there may be more due rows than limit, ready ones
// would overtake them and wait for the next claim.
func arrange(ready, due []row, blocked map[string]bool, limit int) (batch []row, behind map[bool][]int64) {
	sort.Slice(due, func(i, j int) bool { return due[i].offset < due[j].offset })
	all := due
	if len(due) < limit {
		all = append(due, ready...)
	}
	batch = make([]row, 0, len(all))
	for _, r := range all {
		parked, is := blocked[r.key]
		if r.key == "" || !is {
			batch = append(batch, r)
			continue
		}
		if behind == nil {
			behind = map[bool][]int64{}
		}
		behind[parked] = append(behind[parked], r.offset)
	}
	return batch, behind
}
