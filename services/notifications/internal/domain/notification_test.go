package domain

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func TestBeginNeverRepeatsASendThatCannotBeRecognised(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		state        State
		idempotent   bool
		want         State
		wantAttempts int
	}{
		"first attempt":                        {Pending, false, Sending, 1},
		"open attempt, channel can't be asked": {Sending, false, Unknown, 0},
		"open attempt, channel knows the key":  {Sending, true, Sending, 1},
		"sent stays":                           {Sent, true, Sent, 0},
		"failed stays":                         {Failed, true, Failed, 0},
		"unknown stays, though idempotent":     {Unknown, true, Unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := Notification{State: tc.state}
			n.Begin(tc.idempotent, now)
			require.Equal(t, tc.want, n.State)
			require.Equal(t, tc.wantAttempts, n.Attempts)
			if tc.want == Unknown && tc.state != Unknown {
				require.Equal(t, ReasonOutcomeUnknown, n.Reason)
			}
		})
	}
}

func TestNotSentOpensTheWayForAnotherAttempt(t *testing.T) {
	t.Parallel()
	n := Notification{State: Pending}
	n.Begin(false, now)
	n.NotSent("smtp_450", now)
	require.Equal(t, Pending, n.State)
	n.Begin(false, now)
	require.Equal(t, Sending, n.State, "a known non-send may be repeated on any channel")
	require.Equal(t, 2, n.Attempts)

	n.MarkSent("ref", now)
	n.NotSent("late", now)
	require.Equal(t, Sent, n.State, "a late word does not undo a send")
}

func TestResendIsForFailedAndUnknownOnly(t *testing.T) {
	t.Parallel()
	for _, s := range States() {
		n := Notification{ID: "n1", EventID: "e1", Channel: Email, State: s}
		before := n.Key()
		err := n.RequestResend(now)
		if s == Failed || s == Unknown {
			require.NoError(t, err)
			require.Equal(t, Pending, n.State)
			require.NotEqual(t, before, n.Key(), "a person's decision is a new send")
			continue
		}
		require.ErrorIs(t, err, ErrNotResendable)
		require.Equal(t, before, n.Key())
	}
	code := Notification{State: Failed, Facts: Facts{CodeID: "c"}}
	var refused *ResendError
	require.True(t, errors.As(code.RequestResend(now), &refused))
	require.Contains(t, refused.Because, "new code")
}

func TestKeysAreSafeStableAndApart(t *testing.T) {
	t.Parallel()
	const id = "0197a1b2-0000-7000-8000-000000000001"
	require.Equal(t, id+"-email", SendKey(id, Email, 0))
	require.Equal(t, id+"-sms-r2", SendKey(id, SMS, 2))
	for _, hostile := range []string{"", "../../etc/passwd", "a\r\nBcc: x@example.com", "a/b", strings.Repeat("x", 4000), "ü", "-rf"} {
		key := SendKey(hostile, Email, 0)
		require.Regexp(t, `^h[0-9a-f]{32}-email$`, key)
	}
	require.NotEqual(t, SendKey("a/b", Email, 0), SendKey("a\\b", Email, 0))
	require.Equal(t, MessageID("k", "example.com"), MessageID("k", "example.com"))
	require.NotEqual(t, MessageID("k", "example.com"), MessageID("l", "example.com"))
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a@example.com", "first.last+tag@sub.example.org"} {
		require.Empty(t, CheckAddress(Email, good), good)
	}
	for _, bad := range []string{"a", "a@", "A <a@example.com>", "a@example.com\r\nBcc: b@example.com", "a b@example.com", "a@example.com, b@example.com"} {
		require.Equal(t, ReasonBadAddress, CheckAddress(Email, bad), bad)
	}
	require.Empty(t, CheckAddress(SMS, "+4915112345678"))
	for _, bad := range []string{"015112345678", "+0151123456", "+49 151 1234567", "+49", "+123456789012345678"} {
		require.Equal(t, ReasonBadAddress, CheckAddress(WhatsApp, bad), bad)
	}
	require.Equal(t, ReasonNoAddress, CheckAddress(Email, ""))
	require.Empty(t, CheckAddress(Webhook, ""))
	require.Equal(t, "j***@example.com", MaskAddress("jane.doe@example.com"))
	require.NotContains(t, MaskAddress("+4915112345678"), "15112345")
	require.Equal(t, "***", MaskAddress("12"))
}

func TestLanguageChain(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"de-at", "de", "en"}, LanguageChain("de_AT"))
	require.Equal(t, []string{"zh-hant-tw", "zh-hant", "zh", "en"}, LanguageChain("zh-Hant-TW"))
	require.Equal(t, []string{"en-gb", "en"}, LanguageChain("en-GB"))
	for _, junk := range []string{"", "x", "../de", "de\n", strings.Repeat("a", 99)} {
		if junk == "de\n" {
			require.Equal(t, []string{"de", "en"}, LanguageChain(junk))
			continue
		}
		require.Equal(t, []string{"en"}, LanguageChain(junk), junk)
	}
}

func TestFormatMoney(t *testing.T) {
	t.Parallel()
	const s, n = "\u00a0", "\u202f"
	for _, tc := range []struct {
		amount         int64
		currency, lang string
		want           string
	}{
		{123450, "EUR", "en", "EUR" + s + "1,234.50"},
		{123450, "EUR", "de-AT", "1.234,50" + s + "EUR"},
		{123450, "EUR", "fr", "1" + n + "234,50" + s + "EUR"},
		{5, "USD", "en", "USD" + s + "0.05"},
		{0, "USD", "en", "USD" + s + "0.00"},
		{1500, "JPY", "en", "JPY" + s + "1,500"},
		{1500, "KWD", "en", "KWD" + s + "1.500"},
		{-7, "KWD", "de", "-0,007" + s + "KWD"},
		{-9223372036854775808, "EUR", "en", "EUR" + s + "-92,233,720,368,547,758.08"},
	} {
		require.Equal(t, tc.want, FormatMoney(tc.amount, tc.currency, tc.lang))
	}
}
