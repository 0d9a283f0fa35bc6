package outbound

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

// Folder writes messages as files that a person can open: mail as .eml, the
// rest as .txt. A file is named by the send's key and written whole or not at
// all, so a repeated send replaces it: the channel is idempotent. It is meant
// for one laptop and for tests, since the files hold addresses and codes.
type Folder struct {
	dir    string
	ext    string
	encode func(app.Message) ([]byte, error)
}

var _ app.Channel = (*Folder)(nil)

// NewMailFolder returns a channel that writes mails from the sender as .eml.
func NewMailFolder(dir, from string) (*Folder, error) {
	composer, err := newMailComposer(from)
	if err != nil {
		return nil, err
	}
	return newFolder(dir, ".eml", func(m app.Message) ([]byte, error) {
		msg, err := composer.compose(m)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if _, err := msg.WriteTo(&b); err != nil {
			return nil, fmt.Errorf("write mail %s: %w", m.Key, err)
		}
		return b.Bytes(), nil
	})
}

// NewTextFolder returns a channel that writes text messages as .txt.
func NewTextFolder(dir string) (*Folder, error) {
	return newFolder(dir, ".txt", func(m app.Message) ([]byte, error) {
		return fmt.Appendf(nil, "To: %s\nDate: %s\n\n%s\n", m.Recipient, m.CreatedAt.Format("2006-01-02T15:04:05Z07:00"), m.Content.Text), nil
	})
}

func newFolder(dir, ext string, encode func(app.Message) ([]byte, error)) (*Folder, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %q for messages: %w", dir, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("make folder %q for messages: %w", abs, err)
	}
	return &Folder{dir: abs, ext: ext, encode: encode}, nil
}

// Dir is the folder's absolute path.
func (f *Folder) Dir() string { return f.dir }

// Idempotent implements app.Channel.
func (f *Folder) Idempotent() bool { return true }

// Send implements app.Channel. The reference is the file's name.
func (f *Folder) Send(ctx context.Context, m app.Message) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	content, err := f.encode(m)
	if err != nil {
		return "", err
	}
	name := m.Key + f.ext
	if err := writeFile(f.dir, name, content); err != nil {
		return "", fmt.Errorf("write message %s: %w", m.Key, err)
	}
	return name, nil
}

// writeFile makes the file appear under its name only once it is whole and on
// disk.
func writeFile(dir, name string, content []byte) (err error) {
	tmp, err := os.CreateTemp(dir, ".sending-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
		}
	}()
	if _, err = tmp.Write(content); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	if err = tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(dir, name))
}
