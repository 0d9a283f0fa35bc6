package events

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// NewID returns a new UUIDv7. Ids that one process makes ascend.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// StableID returns the id of the nth event (from 0) of type typ with ordering
// key key that handler emits while it handles the event parent. Equal arguments
// give equal ids, so that a second attempt publishes the same events and not new
// ones. The result is a valid UUIDv7: its time is the parent's where the parent
// is a UUIDv7 or a ULID, else, like its other bits, part of a SHA-256 of the
// arguments.
func StableID(parent, handler, typ, key string, n int) string {
	size := 8 + 8 + len(parent) + 8 + len(handler) + 8 + len(typ) + 8 + len(key)
	b := make([]byte, 0, size)
	for _, s := range [...]string{parent, handler, typ, key} {
		// The length keeps ("ab","c") apart from ("a","bc").
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(n)) //nolint:gosec // any n is as good as another
	sum := sha256.Sum256(b)
	var id uuid.UUID
	copy(id[:], sum[:])
	if ms, ok := idTime(parent); ok {
		copy(id[:6], ms[:])
	}
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// idTime returns the 48 bits of Unix milliseconds in a UUIDv7 or ULID.
func idTime(id string) (ms [6]byte, ok bool) {
	switch len(id) {
	case 36:
		u, err := uuid.Parse(id)
		if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			return ms, false
		}
		copy(ms[:], u[:6])
		return ms, true
	case 26:
		return ulidTime(id)
	}
	return ms, false
}

func ulidTime(id string) (ms [6]byte, ok bool) {
	const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	id = strings.ToUpper(id)
	var v uint64
	for i := 0; i < len(id); i++ {
		d := strings.IndexByte(crockford, id[i])
		if d < 0 || i == 0 && d > 7 {
			return ms, false
		}
		if i < 10 {
			v = v<<5 | uint64(d)
		}
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	copy(ms[:], b[2:])
	return ms, true
}
