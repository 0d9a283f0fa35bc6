package e2e

import (
	"bufio"
	"net"
	"net/mail"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// mailbox is an SMTP server that keeps what it accepts.
type mailbox struct {
	addr string

	mu    sync.Mutex
	mails []*mail.Message
}

func newMailbox(t *testing.T) *mailbox {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	m := &mailbox{addr: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go m.serve(c)
		}
	}()
	return m
}

// serve speaks as much of RFC 5321 as a sender needs.
func (m *mailbox) serve(c net.Conn) {
	defer c.Close()
	tp := textproto.NewConn(c)
	_ = tp.PrintfLine("220 mailbox")
	for {
		line, err := tp.ReadLine()
		if err != nil {
			return
		}
		verb, _, _ := strings.Cut(strings.ToUpper(line), " ")
		switch verb {
		case "DATA":
			_ = tp.PrintfLine("354 go on")
			msg, err := mail.ReadMessage(bufio.NewReader(tp.DotReader()))
			if err != nil {
				return
			}
			m.mu.Lock()
			m.mails = append(m.mails, msg)
			m.mu.Unlock()
			_ = tp.PrintfLine("250 kept")
		case "QUIT":
			_ = tp.PrintfLine("221 bye")
			return
		default:
			_ = tp.PrintfLine("250 ok")
		}
	}
}

// ids returns the Message-ID of every mail, in the order of arrival.
func (m *mailbox) ids() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := make([]string, len(m.mails))
	for i, msg := range m.mails {
		ids[i] = msg.Header.Get("Message-ID")
	}
	return ids
}

// env lets the notifications service send its mails here.
func (m *mailbox) env() []string {
	host, port, _ := net.SplitHostPort(m.addr)
	return []string{
		"HEADRACE_NOTIFICATIONS_EMAIL_TRANSPORT=smtp",
		"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_HOST=" + host,
		"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_PORT=" + port,
		"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_TLS=none",
	}
}
