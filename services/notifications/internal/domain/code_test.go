package domain

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func keeper(t *testing.T, secret string) *CodeKeeper {
	t.Helper()
	k, err := NewCodeKeeper([]byte(secret))
	require.NoError(t, err)
	return k
}

func TestCodeIsKeptOnlyHashedAndSealed(t *testing.T) {
	t.Parallel()
	k := keeper(t, strings.Repeat("s", MinSecretBytes))
	c, err := k.Issue(Code{ID: "c1", Channel: SMS, Recipient: "+4915112345678", Purpose: "login"})
	require.NoError(t, err)
	digits, err := k.Open(c)
	require.NoError(t, err)
	require.True(t, WellFormedDigits(digits))
	for _, kept := range [][]byte{c.Hash, c.Sealed, c.Salt, []byte(c.RecipientHash)} {
		require.False(t, bytes.Contains(kept, []byte(digits)))
	}
	require.True(t, k.Matches(c, "login", digits))
	require.False(t, k.Matches(c, "payout", digits), "another purpose")
	other := c
	other.ID = "c2"
	require.False(t, k.Matches(other, "login", digits), "another code's id")
	_, err = k.Open(other)
	require.Error(t, err, "sealed digits belong to one id")
	require.False(t, keeper(t, strings.Repeat("t", MinSecretBytes)).Matches(c, "login", digits), "another pepper")
	c.Sealed = nil
	_, err = k.Open(c)
	require.ErrorIs(t, err, ErrCodeGone)
}

func TestCodesAreSpreadOverAllDigits(t *testing.T) {
	t.Parallel()
	k := keeper(t, strings.Repeat("s", MinSecretBytes))
	seen, first := map[string]bool{}, map[byte]bool{}
	for range 500 {
		c, err := k.Issue(Code{ID: "c1", Channel: Email, Recipient: "a@example.com", Purpose: "login"})
		require.NoError(t, err)
		digits, err := k.Open(c)
		require.NoError(t, err)
		seen[digits], first[digits[0]] = true, true
	}
	require.Greater(t, len(seen), 490)
	require.Len(t, first, 10, "leading zeros included")
}

func TestSecretMustBeLong(t *testing.T) {
	t.Parallel()
	_, err := NewCodeKeeper([]byte("short"))
	require.ErrorContains(t, err, "32")
}

func TestRecipientHashFoldsWhatReachesTheSameMailbox(t *testing.T) {
	t.Parallel()
	k := keeper(t, strings.Repeat("s", MinSecretBytes))
	require.Equal(t, k.RecipientHash(Email, "Jane@Example.com"), k.RecipientHash(Email, " jane@example.COM"))
	require.NotEqual(t, k.RecipientHash(SMS, "+4915112345678"), k.RecipientHash(WhatsApp, "+4915112345678"))
}
