package domain

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"
)

// CodeDigits is how long a one-time code is.
const CodeDigits = 6

// MinSecretBytes is how long the secret of a CodeKeeper must be at least.
const MinSecretBytes = 32

// Code is one one-time code. The digits themselves are not in it: Hash proves
// them, and Sealed holds them encrypted only until the message has gone out.
// Times are UTC; zero means "not yet".
type Code struct {
	ID        string
	Channel   Channel
	Recipient string
	// RecipientHash is what the rate limit counts by.
	RecipientHash string
	Language      string
	// Purpose binds the code to what it was asked for: a code for "login" does
	// not verify for "payout".
	Purpose    string
	Salt       []byte
	Hash       []byte
	Sealed     []byte
	Attempts   int
	CreatedAt  time.Time
	ExpiresAt  time.Time
	ConsumedAt time.Time
}

// CodeKeeper makes codes and checks them under one secret (the pepper). It is
// safe for concurrent use.
type CodeKeeper struct {
	pepper []byte
	aead   cipher.AEAD
	random io.Reader
}

// NewCodeKeeper derives the keys for hashing and sealing from secret. It fails
// when the secret is shorter than MinSecretBytes: six digits are guessed in no
// time by whoever holds the table and the pepper.
func NewCodeKeeper(secret []byte) (*CodeKeeper, error) {
	if len(secret) < MinSecretBytes {
		return nil, fmt.Errorf("secret for one-time codes has %d bytes: it needs %d or more", len(secret), MinSecretBytes)
	}
	pepper, err := hkdf.Key(sha256.New, secret, nil, "headrace notifications code hash v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the pepper: %w", err)
	}
	sealing, err := hkdf.Key(sha256.New, secret, nil, "headrace notifications code seal v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the sealing key: %w", err)
	}
	block, err := aes.NewCipher(sealing)
	if err != nil {
		return nil, fmt.Errorf("sealing cipher: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("sealing cipher: %w", err)
	}
	return &CodeKeeper{pepper: pepper, aead: aead, random: rand.Reader}, nil
}

// Issue draws fresh digits for c and fills in its salt, hash, sealed digits and
// recipient hash. C must already have its id, channel, recipient and purpose.
func (k *CodeKeeper) Issue(c Code) (Code, error) {
	n, err := rand.Int(k.random, big.NewInt(1_000_000))
	if err != nil {
		return Code{}, fmt.Errorf("draw a code: %w", err)
	}
	digits := fmt.Sprintf("%0*d", CodeDigits, n.Int64())
	c.Salt = make([]byte, 16)
	if _, err := io.ReadFull(k.random, c.Salt); err != nil {
		return Code{}, fmt.Errorf("draw a salt: %w", err)
	}
	nonce := make([]byte, k.aead.NonceSize())
	if _, err := io.ReadFull(k.random, nonce); err != nil {
		return Code{}, fmt.Errorf("draw a nonce: %w", err)
	}
	c.Sealed = k.aead.Seal(nonce, nonce, []byte(digits), []byte(c.ID))
	c.Hash = k.hash(c.Salt, c.ID, c.Purpose, digits)
	c.RecipientHash = k.RecipientHash(c.Channel, c.Recipient)
	return c, nil
}

// ErrCodeGone means that a code's digits are no longer kept: they are wiped
// once the message has gone out.
var ErrCodeGone = errors.New("the code's digits are no longer kept")

// Open returns the digits of a code that was not yet sent. It fails with
// ErrCodeGone when they were wiped.
func (k *CodeKeeper) Open(c Code) (string, error) {
	size := k.aead.NonceSize()
	if len(c.Sealed) == 0 {
		return "", fmt.Errorf("code %s: %w", c.ID, ErrCodeGone)
	}
	if len(c.Sealed) < size {
		return "", fmt.Errorf("code %s: sealed digits are cut short", c.ID)
	}
	digits, err := k.aead.Open(nil, c.Sealed[:size], c.Sealed[size:], []byte(c.ID))
	if err != nil {
		return "", fmt.Errorf("code %s: open the sealed digits (was codes.secret changed?): %w", c.ID, err)
	}
	return string(digits), nil
}

// Matches tells whether digits are c's, for purpose, in constant time.
func (k *CodeKeeper) Matches(c Code, purpose, digits string) bool {
	return hmac.Equal(c.Hash, k.hash(c.Salt, c.ID, purpose, digits))
}

// Waste takes as long as Matches: for an id that does not exist, so that the
// answer's time does not tell.
func (k *CodeKeeper) Waste(id, purpose, digits string) {
	salt := make([]byte, 16)
	_ = hmac.Equal(make([]byte, sha256.Size), k.hash(salt, id, purpose, digits))
}

// RecipientHash is a keyed hash of a recipient, for counting without keeping
// another copy of the address.
func (k *CodeKeeper) RecipientHash(channel Channel, recipient string) string {
	mac := hmac.New(sha256.New, k.pepper)
	writeParts(mac, "recipient", string(channel), NormalizeAddress(channel, recipient))
	return hex.EncodeToString(mac.Sum(nil))
}

func (k *CodeKeeper) hash(salt []byte, id, purpose, digits string) []byte {
	mac := hmac.New(sha256.New, k.pepper)
	writeParts(mac, "code", string(salt), id, purpose, digits)
	return mac.Sum(nil)
}

// writeParts writes each part with its length, so that no two lists of parts
// are the same bytes.
func writeParts(w io.Writer, parts ...string) {
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		_, _ = w.Write(size[:])
		_, _ = io.WriteString(w, p)
	}
}

// WellFormedDigits tells whether s has the shape of a code.
func WellFormedDigits(s string) bool {
	if len(s) != CodeDigits {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
