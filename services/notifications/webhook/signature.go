// Package webhook signs the webhooks of the notifications service and checks
// their signatures. A receiver written in Go imports it; another one follows
// the format below.
//
// # Format
//
// A delivery is a POST with a JSON body and these headers:
//
//	Headrace-Delivery-Id: 0197a1b2-…-webhook   the same in every attempt of one delivery
//	Headrace-Signature:   t=1767225600,v1=5257a869…
//
// T is the time of the attempt in Unix seconds. Each v1 is the HMAC-SHA256, in
// lower-case hex, of the bytes "<t>.<body>" under one secret; there are two
// while a secret is being replaced. A receiver takes the delivery when one v1
// is right and t lies within its replay window, and drops a Headrace-Delivery-Id
// that it has seen, remembering ids for longer than that window.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Names of the headers.
const (
	HeaderSignature  = "Headrace-Signature"
	HeaderDeliveryID = "Headrace-Delivery-Id"
)

// DefaultTolerance is the replay window that Verify uses when none is given.
const DefaultTolerance = 5 * time.Minute

// Errors of Verify.
var (
	// ErrMalformed means that the header is not in the format above.
	ErrMalformed = errors.New("webhook: malformed signature header")
	// ErrMismatch means that no signature is right: another secret, or the body
	// or the time was changed.
	ErrMismatch = errors.New("webhook: signature does not match")
	// ErrOutsideWindow means that the signature is right and its time is not
	// within the replay window: a replay, or a clock that is off.
	ErrOutsideWindow = errors.New("webhook: time outside the replay window")
)

// Sign returns the value of HeaderSignature for body at a time, with one v1 for
// each secret that is not empty.
func Sign(body []byte, at time.Time, secrets ...string) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	var b strings.Builder
	b.WriteString("t=" + stamp)
	for _, secret := range secrets {
		if secret != "" {
			b.WriteString(",v1=" + hex.EncodeToString(sum(secret, stamp, body)))
		}
	}
	return b.String()
}

// Verify checks a HeaderSignature against the body exactly as it was received.
// The signature holds when it is right under one of the secrets (empty ones
// never match) and its time is at most tolerance away from now, before or
// after; 0 means DefaultTolerance. The comparison takes constant time.
func Verify(header string, body []byte, now time.Time, tolerance time.Duration, secrets ...string) error {
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	stamp, signatures, err := parse(header)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: t is not a number of seconds", ErrMalformed)
	}
	match := false
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		want := sum(secret, stamp, body)
		for _, s := range signatures {
			// No early end: the time must not tell which one it was.
			match = hmac.Equal(s, want) || match
		}
	}
	if !match {
		return ErrMismatch
	}
	if off := now.Sub(time.Unix(seconds, 0)); off > tolerance || off < -tolerance {
		return ErrOutsideWindow
	}
	return nil
}

func parse(header string) (stamp string, signatures [][]byte, err error) {
	for field := range strings.SplitSeq(header, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(field), "=")
		if !ok {
			return "", nil, fmt.Errorf("%w: a field has no value", ErrMalformed)
		}
		switch name {
		case "t":
			if stamp != "" {
				return "", nil, fmt.Errorf("%w: t occurs twice", ErrMalformed)
			}
			stamp = value
		case "v1":
			s, err := hex.DecodeString(value)
			if err != nil || len(s) != sha256.Size {
				return "", nil, fmt.Errorf("%w: v1 is not the hex of 32 bytes", ErrMalformed)
			}
			if signatures = append(signatures, s); len(signatures) > 8 {
				return "", nil, fmt.Errorf("%w: more than 8 signatures", ErrMalformed)
			}
		}
		// Another name is a scheme of the future: not an error, not a proof.
	}
	if stamp == "" || len(signatures) == 0 {
		return "", nil, fmt.Errorf("%w: t and v1 are needed", ErrMalformed)
	}
	return stamp, signatures, nil
}

func sum(secret, stamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return mac.Sum(nil)
}
