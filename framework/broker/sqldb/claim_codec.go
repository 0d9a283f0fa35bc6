package sqldb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
)

// item is one message of a claim.
type item struct {
	off   int64
	count int    // deliveries on record
	key   uint64 // hash of the ordering key; 0 without one
}

const (
	codecPlain = 1
	codecKeys  = 2
)

// encodeItems writes the items of a claim, sorted by number: a version byte,
// then for each the distance to the one before, the count and, in version 2, the
// key.
func encodeItems(items []item) []byte {
	version := byte(codecPlain)
	for i := range items {
		if items[i].key != 0 {
			version = codecKeys
			break
		}
	}
	b := make([]byte, 0, 1+len(items)*(3+8*int(version-1)))
	b = append(b, version)
	prev := int64(0)
	for _, it := range items {
		b = binary.AppendVarint(b, it.off-prev)
		b = binary.AppendUvarint(b, uint64(max(it.count, 0)))
		if version == codecKeys {
			b = binary.BigEndian.AppendUint64(b, it.key)
		}
		prev = it.off
	}
	return b
}

var errClaimBytes = errors.New("sqldb: a claim's entries can't be read")

// decodeItems reads what encodeItems wrote and appends it to items.
func decodeItems(items []item, b []byte) ([]item, error) {
	if len(b) == 0 {
		return items, fmt.Errorf("%w: they are empty", errClaimBytes)
	}
	version := b[0]
	if version != codecPlain && version != codecKeys {
		return items, fmt.Errorf("%w: version %d is not known here: is a newer release running beside this one?", errClaimBytes, version)
	}
	b = b[1:]
	prev := int64(0)
	for len(b) > 0 {
		d, n := binary.Varint(b)
		if n <= 0 {
			return items, fmt.Errorf("%w: they are cut off", errClaimBytes)
		}
		b = b[n:]
		count, n := binary.Uvarint(b)
		if n <= 0 || count > 1<<31 {
			return items, fmt.Errorf("%w: they are cut off", errClaimBytes)
		}
		b = b[n:]
		it := item{off: prev + d, count: int(count)}
		if version == codecKeys {
			if len(b) < 8 {
				return items, fmt.Errorf("%w: they are cut off", errClaimBytes)
			}
			it.key = binary.BigEndian.Uint64(b)
			b = b[8:]
		}
		prev = it.off
		items = append(items, it)
	}
	return items, nil
}

func sortItems(items []item) {
	sort.Slice(items, func(i, j int) bool { return items[i].off < items[j].off })
}
