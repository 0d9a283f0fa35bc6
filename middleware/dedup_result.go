package middleware

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultMaxResultBytes is the default of DedupConfig.MaxResultBytes.
const DefaultMaxResultBytes = 64 << 10

// ErrResultUnreadable is in the chain of the permanent error of a duplicate whose
// kept result can't be read: it was written by a newer version, or damaged.
var ErrResultUnreadable = errors.New("kept result unreadable")

// resultFormat is the first byte of a kept result.
const resultFormat = 1

// keepResult commits the claim with what the handler produced, before anything
// of it is published. When it returns false and no error the claim is still held,
// and what it returns as result is to be kept once the messages are out.
func (d *dedup) keepResult(ctx context.Context, msg *message.Message, handler, id string, claim Claim,
	produced []*message.Message,
) (committed bool, result []byte, err error) {
	for i, p := range produced {
		if p != nil && p.UUID == "" {
			p.UUID = producedID(msg, p, message.HandlerNameFromCtx(ctx), i)
		}
	}
	result, fits := encodeResult(produced, d.MaxResultBytes)
	if !fits {
		d.resultTooLarge(ctx, handler, claim)
		return false, nil, nil
	}
	store, ok := d.Store.(ResultStore)
	if !ok { // Validate has refused it
		return false, nil, nil
	}
	err = d.try(ctx, func(ctx context.Context) error { return store.CommitResult(ctx, claim, d.Retention, result) })
	switch {
	case err == nil:
		return true, nil, nil
	case errors.Is(err, ErrResultTooLarge):
		d.resultTooLarge(ctx, handler, claim)
		return false, nil, nil
	case errors.Is(err, ErrClaimLost):
		// Whoever has the key gives the result that counts; this one is not
		// published.
		d.outlived(ctx, handler, claim)
		return false, nil, deferred(msg, Defer(fmt.Errorf("%w: %s", ErrClaimLost, id), busyDelay+jitter(busyDelay/4)), handler, d.Metrics)
	}
	d.Logger.WarnContext(ctx, "result not kept before it is published; it is tried again after",
		"handler", handler, "key", claim.Key, "error", err)
	return false, result, nil
}

func (d *dedup) resultTooLarge(ctx context.Context, handler string, claim Claim) {
	d.Logger.WarnContext(ctx, "result too large to be kept: the message is recorded without it once it is published",
		"handler", handler, "key", claim.Key, "limit", d.MaxResultBytes)
}

// kept is what a duplicate publishes again.
func kept(claim Claim) ([]*message.Message, error) {
	if len(claim.Result) == 0 {
		return nil, nil
	}
	produced, err := decodeResult(claim.Result)
	if err != nil {
		return nil, Permanent(fmt.Errorf("%w: key %s: %w", ErrResultUnreadable, claim.Key, err))
	}
	return produced, nil
}

// encodeResult writes the messages' ids, metadata and payloads, each with its
// length before it. It returns false for more than limit bytes.
func encodeResult(produced []*message.Message, limit int) ([]byte, bool) {
	n := uint64(0)
	for _, m := range produced {
		if m != nil {
			n++
		}
	}
	b := binary.AppendUvarint([]byte{resultFormat}, n)
	for _, m := range produced {
		if m == nil {
			continue
		}
		b = appendBytes(b, m.UUID)
		b = binary.AppendUvarint(b, uint64(len(m.Metadata)))
		for _, k := range slices.Sorted(maps.Keys(m.Metadata)) {
			b = appendBytes(appendBytes(b, k), m.Metadata[k])
		}
		if len(b)+len(m.Payload) > limit {
			return nil, false
		}
		b = appendBytes(b, m.Payload)
	}
	return b, len(b) <= limit
}

func appendBytes[T ~string | ~[]byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// decodeResult reads what encodeResult wrote. The messages share no memory with b.
func decodeResult(b []byte) ([]*message.Message, error) {
	if b[0] != resultFormat {
		return nil, fmt.Errorf("its format is %d, and this version reads %d", b[0], resultFormat)
	}
	r := resultReader{rest: b[1:]}
	var produced []*message.Message
	for n := r.length(); n > 0 && !r.short; n-- {
		m := message.NewMessage(string(r.bytes()), nil)
		for k := r.length(); k > 0 && !r.short; k-- {
			key := string(r.bytes())
			m.Metadata[key] = string(r.bytes())
		}
		m.Payload = append(message.Payload{}, r.bytes()...)
		produced = append(produced, m)
	}
	if r.short || len(r.rest) > 0 {
		return nil, errors.New("it is damaged")
	}
	return produced, nil
}

type resultReader struct {
	rest  []byte
	short bool
}

// length reads a number, which can't exceed what is left.
func (r *resultReader) length() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > uint64(len(r.rest)-n) {
		r.short, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *resultReader) bytes() []byte {
	n := r.length()
	v := r.rest[:n]
	r.rest = r.rest[n:]
	return v
}
