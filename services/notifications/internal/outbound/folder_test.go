package outbound

import (
	"context"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

func TestFolderKeepsOneFileForASendHoweverOftenItIsRepeated(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "mail")
	f, err := NewMailFolder(dir, "Shop <no-reply@shop.example>")
	require.NoError(t, err)
	require.True(t, f.Idempotent())
	require.Equal(t, dir, f.Dir())

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			name, err := f.Send(t.Context(), mailMessage())
			if err != nil || name != mailMessage().Key+".eml" {
				t.Errorf("send: %q %v", name, err)
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no second mail and no half-written file")

	raw, err := os.Open(filepath.Join(dir, entries[0].Name()))
	require.NoError(t, err)
	defer raw.Close()
	m, err := mail.ReadMessage(raw)
	require.NoError(t, err)
	require.Equal(t, "<"+recipient+">", m.Header.Get("To"))
	require.Equal(t, "<"+domain.MessageID(mailMessage().Key, "shop.example")+">", m.Header.Get("Message-ID"))
	require.Equal(t, "<p>Grüße</p>", parts(t, m)["text/html"])
}

func TestTextFolderWritesWhatWouldBeSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := NewTextFolder(dir)
	require.NoError(t, err)
	name, err := f.Send(t.Context(), textMessage())
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(name, "-sms.txt"))
	require.Contains(t, string(raw), "To: +4915112345678\n")
	require.Contains(t, string(raw), "Bestellung bestätigt")
}

func TestFolderThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := NewTextFolder(filepath.Join(file, "mail"))
	require.ErrorContains(t, err, "mail")

	f, err := NewTextFolder(filepath.Join(dir, "gone"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(f.Dir()))
	_, err = f.Send(t.Context(), textMessage())
	require.Error(t, err)

	f, err = NewTextFolder(filepath.Join(dir, "there"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Send(ctx, textMessage())
	require.ErrorIs(t, err, context.Canceled)
	entries, err := os.ReadDir(f.Dir())
	require.NoError(t, err)
	require.Empty(t, entries)
}
