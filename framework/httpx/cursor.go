package httpx

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Cursor is a place in a list that is ordered by time and then id. It is exact
// to the microsecond and opaque to clients.
type Cursor struct {
	At time.Time
	ID string
}

// maxCursorID bounds the id in a cursor, in bytes.
const maxCursorID = 255

// String writes the cursor as clients pass it back.
func (c Cursor) String() string {
	// The leading "1" is the format's version.
	return base64.RawURLEncoding.EncodeToString([]byte("1." + strconv.FormatInt(c.At.UnixMicro(), 10) + "." + c.ID))
}

var errCursor = errors.New("httpx: not a cursor of this service")

// ParseCursor reads what String wrote. The error never repeats it.
func ParseCursor(s string) (Cursor, error) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return Cursor{}, errCursor
	}
	rest, ok := strings.CutPrefix(string(raw), "1.")
	if !ok {
		return Cursor{}, errCursor
	}
	at, id, ok := strings.Cut(rest, ".")
	us, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil || !ValidID(id, maxCursorID) {
		return Cursor{}, errCursor
	}
	return Cursor{At: time.UnixMicro(us).UTC(), ID: id}, nil
}
