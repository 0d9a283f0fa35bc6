package nats

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSubjects(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]string{
		"orders.placed":        "orders.placed",
		"a-b_c.D9":             "a-b_c.D9",
		"a..b":                 "a.%2Eb",
		".a.":                  "%2Ea%2E",
		"_INBOX.x":             "%5FINBOX.x",
		"$JS.API":              "%24JS.API",
		"a.*.>":                "a.%2A.%3E",
		"with space\tand\nend": "with%20space%09and%0Aend",
		"ä%":                   "%C3%A4%25",
	} {
		got := Config{}.Subject(topic)
		require.Equal(t, want, got)
		back, err := url.PathUnescape(got)
		require.NoError(t, err)
		require.Equal(t, topic, back, "nothing is lost, so no two topics share a subject")
	}
	require.Equal(t, "staging.orders", Config{Prefix: "staging."}.Subject("orders"))
}

func TestLongNamesStayApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä.", 300)
	seen := map[string]string{}
	for _, topic := range []string{long, long + "a", long + "b", strings.Repeat("%", 100), strings.Repeat("%", 101)} {
		subject := Config{}.Subject(topic)
		require.LessOrEqual(t, len(subject), maxSubject)
		require.NotContains(t, subject, "..")
		require.Empty(t, seen[subject])
		seen[subject] = topic
	}
}

func TestAssetNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"a.b", "a-b", "a_b", "A.b", "a/b", `a\b`, "", strings.Repeat("x", 300), strings.Repeat("x", 301)} {
		got := Config{}.ConsumerName(name)
		require.LessOrEqual(t, len(got), maxReadable+1+hashLen)
		require.False(t, strings.ContainsAny(got, " .*>/\\"), got)
		require.False(t, seen[strings.ToLower(got)], "apart without case too")
		seen[strings.ToLower(got)] = true
	}
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "staging.", "a.b-", "team_1."} {
		require.True(t, legalPrefix(good), good)
	}
	for _, bad := range []string{".", "a..", "_x", "$JS.", "a b", "a>", "%41", strings.Repeat("a", MaxPrefix+1)} {
		require.False(t, legalPrefix(bad), bad)
		require.ErrorContains(t, Config{URL: "x", Prefix: bad}.WithDefaults().Validate(), "Prefix")
	}
	// No topic reaches the counts.
	require.NotEqual(t, Config{}.Subject("%counts"), Config{}.countsSubject())
}

func TestServersWithoutSecrets(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a:4222, b:4222", servers("nats://user:s3cret@a:4222, tls://token@b:4222"))
}
