package kafka

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
)

// ledgerVersion begins every ledger.
const ledgerVersion = 1

// ledger is what a group knows of one partition, in the metadata of its commit.
// What is from the committed offset up to next and not among notes is settled.
type ledger struct {
	next  int64
	notes []note // by offset
}

// note is what is on record of one message that is not settled.
type note struct {
	offset int64
	count  int
	// due: it must not be delivered before. Zero: at once.
	due time.Time
	// holder has it in hand until then, though another owns the partition now.
	holder string
	until  time.Time
	// settled is said by a holder only.
	settled bool
}

const (
	flagHeld    = 1 << iota // a holder and a time follow
	flagDue                 // a time follows
	flagSettled             // the holder has settled it
	flagBits    = iota
)

// encode writes the ledger beside the offset base. Times are kept by the
// millisecond.
func (l ledger) encode(base int64) string {
	holders, index := []string(nil), map[string]int{}
	var zero time.Time
	for _, n := range l.notes {
		if n.holder != "" {
			if _, ok := index[n.holder]; !ok {
				index[n.holder] = len(holders)
				holders = append(holders, n.holder)
			}
		}
		for _, t := range []time.Time{n.until, n.due} {
			if !t.IsZero() && (zero.IsZero() || t.Before(zero)) {
				zero = t
			}
		}
	}
	var start int64
	if !zero.IsZero() {
		start = max(zero.UnixMilli(), 0)
	}
	b := []byte{ledgerVersion}
	b = binary.AppendUvarint(b, uint64(max(l.next-base, 0)))
	b = binary.AppendUvarint(b, uint64(start))
	b = binary.AppendUvarint(b, uint64(len(holders)))
	for _, h := range holders {
		b = binary.AppendUvarint(b, uint64(len(h)))
		b = append(b, h...)
	}
	b = binary.AppendUvarint(b, uint64(len(l.notes)))
	since := func(t time.Time) uint64 { return uint64(max(t.UnixMilli()-start, 0)) }
	at := base
	for _, n := range l.notes {
		var flags uint64
		if n.holder != "" {
			flags |= flagHeld
		}
		if !n.due.IsZero() {
			flags |= flagDue
		}
		if n.settled {
			flags |= flagSettled
		}
		b = binary.AppendUvarint(b, uint64(max(n.offset-at, 0)))
		b = binary.AppendUvarint(b, uint64(max(n.count, 0))<<flagBits|flags)
		if flags&flagHeld != 0 {
			b = binary.AppendUvarint(b, uint64(index[n.holder]))
			b = binary.AppendUvarint(b, since(n.until))
		}
		if flags&flagDue != 0 {
			b = binary.AppendUvarint(b, since(n.due))
		}
		at = n.offset
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

var errNoLedger = errors.New("the commit's metadata is no ledger")

// decodeLedger reads what encode wrote beside the offset base. What others commit
// has no ledger, or something else in its place.
func decodeLedger(base int64, metadata string) (ledger, error) {
	bare := ledger{next: base}
	b, err := base64.RawStdEncoding.DecodeString(metadata)
	if err != nil || len(b) == 0 || b[0] != ledgerVersion {
		return bare, errNoLedger
	}
	b = b[1:]
	broken := false
	num := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<50 { // sums of those stay numbers
			broken = true
			return 0
		}
		b = b[n:]
		return v
	}
	l := ledger{next: base + int64(num())}
	start := int64(num())
	var holders []string
	for range min(num(), 1<<12) {
		n := num()
		if broken || n > uint64(len(b)) {
			return bare, errNoLedger
		}
		holders = append(holders, string(b[:n]))
		b = b[n:]
	}
	at := base
	for range min(num(), 1<<12) {
		at += int64(num())
		v := num()
		n := note{offset: at, count: int(v >> flagBits), settled: v&flagSettled != 0}
		if v&flagHeld != 0 {
			i := num()
			if i >= uint64(len(holders)) {
				return bare, errNoLedger
			}
			n.holder, n.until = holders[i], time.UnixMilli(start+int64(num()))
		}
		if v&flagDue != 0 {
			n.due = time.UnixMilli(start + int64(num()))
		}
		l.notes = append(l.notes, n)
	}
	if broken || len(b) != 0 || l.next < at {
		return bare, errNoLedger
	}
	return l, nil
}
