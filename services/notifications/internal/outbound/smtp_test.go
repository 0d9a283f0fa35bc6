package outbound

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/outbound/smtptest"
)

const recipient = "jane.doe@example.com"

var created = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func mailMessage() app.Message {
	return app.Message{
		Key: domain.SendKey("0197a1b2-0000-7000-8000-000000000001", domain.Email, 0), NotificationID: "n-1",
		EventID: "0197a1b2-0000-7000-8000-000000000001", EventType: "order.confirmed", Template: "order_confirmed", OrderID: "o-1",
		Recipient: recipient, Language: "de", CreatedAt: created,
		Content: app.Content{Subject: "Bestellung bestätigt", Text: "Grüße\n.\nEnde\n", HTML: "<p>Grüße</p>"},
	}
}

func smtpTo(t *testing.T, s *smtptest.Server, change func(*SMTPConfig)) *SMTP {
	t.Helper()
	cfg := SMTPConfig{
		Host: s.Host, Port: s.Port, From: "Shop <no-reply@shop.example>", TLSConfig: s.TLSConfig(), Timeout: 5 * time.Second, Helo: "test.example",
	}
	if change != nil {
		change(&cfg)
	}
	ch, err := NewSMTP(cfg)
	require.NoError(t, err)
	return ch
}

func TestSMTPSendsOverTLSWithAPassword(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	s.Password = "s3cret"
	ch := smtpTo(t, s, func(c *SMTPConfig) { c.Username, c.Password = "shop", "s3cret" })
	require.False(t, ch.Idempotent())

	reference, err := ch.Send(t.Context(), mailMessage())
	require.NoError(t, err)
	require.Contains(t, reference, "4711")
	require.Len(t, s.Mails(), 1)
	got := s.Mails()[0]
	require.True(t, got.TLS)
	require.Equal(t, "shop", got.Username)
	require.Equal(t, "no-reply@shop.example", got.From)
	require.Equal(t, recipient, got.To)

	m, err := mail.ReadMessage(strings.NewReader(got.Data))
	require.NoError(t, err)
	subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
	require.NoError(t, err)
	require.Equal(t, "Bestellung bestätigt", subject)
	require.Equal(t, "<"+domain.MessageID(mailMessage().Key, "shop.example")+">", m.Header.Get("Message-ID"))
	require.Equal(t, "auto-generated", m.Header.Get("Auto-Submitted"))
	date, err := m.Header.Date()
	require.NoError(t, err)
	require.True(t, date.Equal(created))
	require.Equal(t, map[string]string{"text/plain": "Grüße\n.\nEnde\n", "text/html": "<p>Grüße</p>"}, parts(t, m))
}

func parts(t *testing.T, m *mail.Message) map[string]string {
	t.Helper()
	_, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	require.NoError(t, err)
	got := map[string]string{}
	r := multipart.NewReader(m.Body, params["boundary"])
	for {
		p, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		media, _, err := mime.ParseMediaType(p.Header.Get("Content-Type"))
		require.NoError(t, err)
		require.Equal(t, "quoted-printable", p.Header.Get("Content-Transfer-Encoding"))
		body, err := io.ReadAll(quotedprintable.NewReader(p))
		require.NoError(t, err)
		got[media] = strings.ReplaceAll(string(body), "\r\n", "\n")
	}
}

// What an answer means decides whether a customer gets none, one or two mails.
func TestSMTPAnswers(t *testing.T) {
	t.Parallel()
	const notSent, refused, unknown = "not sent", "refused", "unknown"
	for name, tc := range map[string]struct {
		verb, reply string
		want        string
		reason      string
	}{
		"greylisted":                      {"RCPT", "450 4.2.0 try again, " + recipient, notSent, ""},
		"no such mailbox":                 {"RCPT", "550 5.1.1 no such user " + recipient, refused, "smtp_550"},
		"sender refused":                  {"MAIL", "553 5.1.8 no", refused, "smtp_553"},
		"authentication asked for":        {"MAIL", "530 5.7.0 authenticate first", notSent, ""},
		"busy at data":                    {"DATA", "421 4.3.2 shutting down", notSent, ""},
		"dropped at RCPT":                 {"RCPT", "", notSent, ""},
		"dropped at MAIL":                 {"MAIL", "", notSent, ""},
		"mail deferred after its end":     {".", "451 4.3.0 later", notSent, ""},
		"mail refused after its end":      {".", "554 5.7.1 spam", refused, "smtp_554"},
		"dropped before the final answer": {".", "", unknown, ""},
		"greeting refused":                {"EHLO", "421 too busy", notSent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := smtptest.Start(t)
			s.Replies[tc.verb] = tc.reply
			if tc.verb == "EHLO" {
				s.Replies["HELO"] = tc.reply
			}
			_, err := smtpTo(t, s, nil).Send(t.Context(), mailMessage())
			require.Error(t, err)
			require.Empty(t, s.Mails())
			require.NotContains(t, err.Error(), recipient, "no address in an error")
			var r *app.RefusedError
			require.Equal(t, tc.want == refused, errors.As(err, &r), "%v", err)
			require.Equal(t, tc.want == unknown, errors.Is(err, app.ErrOutcomeUnknown), "%v", err)
			if tc.want == refused {
				require.Equal(t, tc.reason, r.Reason)
			}
		})
	}
}

func TestSMTPFarewellThatFailsLeavesTheMailSent(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	s.Replies["QUIT"] = ""
	_, err := smtpTo(t, s, nil).Send(t.Context(), mailMessage())
	require.NoError(t, err)
	require.Len(t, s.Mails(), 1)
}

func TestSMTPNeverSendsInTheClearUnlessTold(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	s.NoTLS, s.Password = true, "s3cret"
	_, err := smtpTo(t, s, func(c *SMTPConfig) { c.Username, c.Password = "shop", "s3cret" }).Send(t.Context(), mailMessage())
	require.Error(t, err)
	require.NotErrorIs(t, err, app.ErrOutcomeUnknown)
	for _, line := range s.Lines() {
		require.False(t, strings.HasPrefix(line, "AUTH"), "the password stays at home")
		require.False(t, strings.HasPrefix(line, "MAIL"))
	}

	_, err = smtpTo(t, s, func(c *SMTPConfig) { c.TLS = TLSNone }).Send(t.Context(), mailMessage())
	require.NoError(t, err)
	require.False(t, s.Mails()[0].TLS)
}

func TestSMTPRefusesAServerThatIsNotTheOneNamed(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	_, err := smtpTo(t, s, func(c *SMTPConfig) { c.TLSConfig = nil }).Send(t.Context(), mailMessage())
	require.ErrorContains(t, err, "certificate")
	require.Empty(t, s.Mails())
}

func TestSMTPWrongPasswordIsForAnOperator(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	s.Password = "s3cret"
	_, err := smtpTo(t, s, func(c *SMTPConfig) { c.Username, c.Password = "shop", "wr0ng" }).Send(t.Context(), mailMessage())
	require.Error(t, err)
	var refused *app.RefusedError
	require.False(t, errors.As(err, &refused), "the mail is not at fault")
	require.NotErrorIs(t, err, app.ErrOutcomeUnknown)
	require.NotContains(t, err.Error(), "wr0ng")
}

func TestSMTPGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	s.OnDot = func() { cancel(); <-hold }
	_, err := smtpTo(t, s, func(c *SMTPConfig) { c.Timeout = time.Minute }).Send(ctx, mailMessage())
	require.ErrorIs(t, err, app.ErrOutcomeUnknown, "the whole mail is out")
}

// A mail that stops midway must not be ended by the dot that a farewell would
// send first: the server would take the stump.
func TestSMTPNeverCompletesAStump(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	received := make(chan string, 1)
	s.OnData = func(c net.Conn) {
		first := make([]byte, 1)
		_, _ = c.Read(first)
		cancel()
		rest, _ := io.ReadAll(c)
		received <- string(first) + string(rest)
	}
	m := mailMessage()
	m.Content.Text = strings.Repeat("a long line of text that fills every buffer on the way\n", 400_000)
	_, err := smtpTo(t, s, func(c *SMTPConfig) { c.TLS, c.Timeout = TLSNone, time.Minute }).Send(ctx, m)
	require.Error(t, err)
	require.NotErrorIs(t, err, app.ErrOutcomeUnknown, "it was not whole, so it was not sent")
	require.NotContains(t, <-received, "\r\n.\r\n")
}

func TestSMTPServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	ch, err := NewSMTP(SMTPConfig{Host: "127.0.0.1", Port: port, From: "a@shop.example"})
	require.NoError(t, err)
	_, err = ch.Send(t.Context(), mailMessage())
	require.Error(t, err)
	require.NotErrorIs(t, err, app.ErrOutcomeUnknown)
}

func TestSMTPConfigThatCannotWork(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]SMTPConfig{
		"policy": {Host: "h", From: "a@shop.example", TLS: "maybe"},
		"sender": {Host: "h", From: "nobody"},
		"port":   {Host: "h", From: "a@shop.example", Port: 99999},
	} {
		_, err := NewSMTP(cfg)
		require.Error(t, err, name)
	}
}

func TestMailRefusesAHostileRecipient(t *testing.T) {
	t.Parallel()
	s := smtptest.Start(t)
	m := mailMessage()
	m.Recipient = "a@example.com>\r\nRCPT TO:<victim@example.com"
	_, err := smtpTo(t, s, nil).Send(t.Context(), m)
	var refused *app.RefusedError
	require.True(t, errors.As(err, &refused))
	require.Empty(t, s.Lines())
}
