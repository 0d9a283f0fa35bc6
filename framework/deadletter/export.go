package deadletter

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Format names the export's format and its version.
const Format = "headrace.dead_letter/1"

// Record is one letter in an export: one line of JSON. The format is stable: a
// field keeps its name and meaning, and a reader ignores fields that it does
// not know. It is lossless: what is no UTF-8 is in the base64 fields.
type Record struct {
	Format string `json:"format"`
	// Group is the consumer group, Position and DeadLetteredAt where and since
	// when the letter lay in its dead letters.
	Group          string    `json:"group"`
	Position       string    `json:"position,omitempty"`
	DeadLetteredAt time.Time `json:"dead_lettered_at,omitzero"`
	// ID, Metadata and Payload are the message's, story included.
	ID       string            `json:"id"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  string            `json:"payload,omitempty"`
	// PayloadBase64 replaces a Payload that is no UTF-8, IDBase64 such an ID;
	// MetadataBase64 are the entries, key and value, that are none.
	PayloadBase64  string      `json:"payload_base64,omitempty"`
	IDBase64       string      `json:"id_base64,omitempty"`
	MetadataBase64 [][2]string `json:"metadata_base64,omitempty"`
}

// record makes l's line.
func record(l Letter, group string) Record {
	r := Record{
		Format: Format, Group: group, Position: l.Position, DeadLetteredAt: l.DeadLetteredAt,
		ID: l.Message.UUID, Metadata: map[string]string{},
	}
	b64 := base64.StdEncoding.EncodeToString
	if !utf8.ValidString(r.ID) {
		r.ID, r.IDBase64 = "", b64([]byte(r.ID))
	}
	if utf8.Valid(l.Message.Payload) {
		r.Payload = string(l.Message.Payload)
	} else {
		r.PayloadBase64 = b64(l.Message.Payload)
	}
	for _, k := range slices.Sorted(maps.Keys(l.Message.Metadata)) {
		v := l.Message.Metadata[k]
		if utf8.ValidString(k) && utf8.ValidString(v) {
			r.Metadata[k] = v
		} else {
			r.MetadataBase64 = append(r.MetadataBase64, [2]string{b64([]byte(k)), b64([]byte(v))})
		}
	}
	return r
}

// message is the letter again, byte for byte.
func (r Record) message() (*message.Message, error) {
	if r.Format != Format {
		return nil, fmt.Errorf("its format is %q: this version reads %q", r.Format, Format)
	}
	unb64 := func(field, s string) ([]byte, error) {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		return b, nil
	}
	id, payload := r.ID, []byte(r.Payload)
	if r.IDBase64 != "" {
		b, err := unb64("id_base64", r.IDBase64)
		if err != nil {
			return nil, err
		}
		id = string(b)
	}
	if r.PayloadBase64 != "" {
		b, err := unb64("payload_base64", r.PayloadBase64)
		if err != nil {
			return nil, err
		}
		payload = b
	}
	m := message.NewMessage(id, payload)
	for k, v := range r.Metadata {
		m.Metadata[k] = v
	}
	for _, kv := range r.MetadataBase64 {
		k, err := unb64("metadata_base64", kv[0])
		if err != nil {
			return nil, err
		}
		v, err := unb64("metadata_base64", kv[1])
		if err != nil {
			return nil, err
		}
		m.Metadata[string(k)] = string(v)
	}
	return m, nil
}

// archive writes records as lines, safely on the disk where w can.
type archive struct{ w io.Writer }

func (a archive) add(group string, letters ...Letter) error {
	for _, l := range letters {
		b, err := json.Marshal(record(l, group))
		if err != nil {
			return fmt.Errorf("deadletter: export %s: %w", l.ID, err)
		}
		if _, err := a.w.Write(append(b, '\n')); err != nil {
			return fmt.Errorf("deadletter: export %s: %w", l.ID, err)
		}
	}
	return nil
}

func (a archive) sync() error {
	if s, ok := a.w.(interface{ Sync() error }); ok {
		if err := s.Sync(); err != nil {
			return fmt.Errorf("deadletter: export: %w", err)
		}
	}
	return nil
}

// Export writes the letters that f takes to w, a Record a line, and returns how
// many there were. Limit 0 means all. It changes nothing in the broker; where w
// has a Sync method that is called at the end.
func (q *Queue) Export(ctx context.Context, w io.Writer, f Filter, limit int, progress func(Progress)) (int, error) {
	n := 0
	a := archive{w}
	for l, err := range q.Browse(ctx, f) {
		if err != nil {
			return n, err
		}
		if err := ctx.Err(); err != nil {
			return n, context.Cause(ctx)
		}
		if limit > 0 && n >= limit {
			break
		}
		if err := a.add(q.cfg.Group, l); err != nil {
			return n, err
		}
		n++
		if progress != nil {
			progress(Progress{Done: n, ID: l.ID})
		}
	}
	return n, a.sync()
}
