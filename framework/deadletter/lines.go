package deadletter

import (
	"cmp"
	"slices"
)

// Bounds on the letters that a replay keeps while it looks for an earlier one of
// their key.
const (
	maxKept      = 1000
	maxKeptBytes = 16 << 20
)

// spot is a letter's place among those that hold up a key.
type spot struct {
	seq    int64
	chosen bool // by the replay's filter
}

// lines tell which letter of a key may be replayed next: the lowest place of
// those that hold up the key. A letter's position says nothing about that, since
// one that failed again lies at the end.
type lines struct {
	spots map[string][]spot   // by key, of letters that were not dealt with yet
	kept  map[string][]Letter // by key, the lowest place first
	count int
	bytes int
}

func newLines() lines { return lines{spots: map[string][]spot{}, kept: map[string][]Letter{}} }

func (n *lines) plan(l Letter, chosen bool) {
	if l.ParksKey {
		n.spots[l.Key] = append(n.spots[l.Key], spot{l.ParkSeq, chosen})
	}
}

func (n *lines) sort() {
	for _, spots := range n.spots {
		slices.SortStableFunc(spots, func(a, b spot) int { return cmp.Compare(a.seq, b.seq) })
	}
}

// first is the lowest spot of l's key where that is before l.
func (n *lines) first(l Letter) (s spot, before bool) {
	spots := n.spots[l.Key]
	if !l.ParksKey || len(spots) == 0 || spots[0].seq >= l.ParkSeq {
		return spot{}, false
	}
	return spots[0], true
}

// early tells whether an earlier letter of l's key is still to be replayed.
func (n *lines) early(l Letter) bool {
	s, before := n.first(l)
	return before && s.chosen
}

// behindAnother tells whether the first letter of l's key stays, since nobody
// chose it.
func (n *lines) behindAnother(l Letter) bool {
	s, before := n.first(l)
	return before && !s.chosen
}

// done says that l was dealt with, whatever the end.
func (n *lines) done(l Letter) {
	if !l.ParksKey {
		return
	}
	spots := n.spots[l.Key]
	i := slices.IndexFunc(spots, func(s spot) bool { return s.seq == l.ParkSeq })
	if i < 0 {
		return
	}
	if n.spots[l.Key] = slices.Delete(spots, i, i+1); len(spots) == 1 {
		delete(n.spots, l.Key)
	}
}

// keep holds a letter that came too early, where there is room. Of one key the
// lowest places are kept, so that few passes do.
func (n *lines) keep(l Letter) {
	kept := n.kept[l.Key]
	if last := len(kept) - 1; n.full(l) && last >= 0 && kept[last].ParkSeq > l.ParkSeq {
		n.take(l.Key, last)
		kept = n.kept[l.Key]
	}
	if n.full(l) {
		return
	}
	at, _ := slices.BinarySearchFunc(kept, l, func(a, b Letter) int { return cmp.Compare(a.ParkSeq, b.ParkSeq) })
	n.kept[l.Key] = slices.Insert(kept, at, l)
	n.count++
	n.bytes += len(l.Message.Payload)
}

func (n *lines) full(l Letter) bool {
	return n.count >= maxKept || n.bytes+len(l.Message.Payload) > maxKeptBytes
}

// next takes out the kept letter of the key whose turn it is; nil without one.
func (n *lines) next(key string) *Letter {
	if kept := n.kept[key]; len(kept) == 0 || n.early(kept[0]) {
		return nil
	}
	l := n.take(key, 0)
	return &l
}

func (n *lines) take(key string, i int) Letter {
	l := n.kept[key][i]
	if n.kept[key] = slices.Delete(n.kept[key], i, i+1); len(n.kept[key]) == 0 {
		delete(n.kept, key)
	}
	n.count--
	n.bytes -= len(l.Message.Payload)
	return l
}

// forget drops what is kept.
func (n *lines) forget() {
	n.kept, n.count, n.bytes = map[string][]Letter{}, 0, 0
}
