package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

// TLS policies of SMTPConfig.
const (
	// TLSMandatory starts TLS and refuses a server that can't.
	TLSMandatory = "mandatory"
	// TLSImplicit speaks TLS from the first byte (port 465).
	TLSImplicit = "implicit"
	// TLSOpportunistic starts TLS where the server offers it.
	TLSOpportunistic = "opportunistic"
	// TLSNone sends in the clear: for a relay on the same host.
	TLSNone = "none"
)

// SMTPConfig configures NewSMTP.
type SMTPConfig struct {
	Host string
	// Port 0 is 465 with TLSImplicit and 587 otherwise.
	Port int
	// From is the sender: "Shop <no-reply@example.com>".
	From string
	// TLS is one of the policies above. Empty means TLSMandatory.
	TLS string
	// Username and Password authenticate; an empty username does not.
	Username, Password string
	// Timeout bounds one whole send, from the dial on. 0 means 20 s.
	Timeout time.Duration
	// Helo is the name that the service gives itself. Empty: the host's name.
	Helo string
	// TLSConfig is used for TLS; nil checks the server's name against the
	// system's roots.
	TLSConfig *tls.Config
}

// SMTP sends mails over SMTP, one connection a mail. SMTP has no idempotency
// key: a mail whose last answer was lost may have been taken.
type SMTP struct {
	cfg      SMTPConfig
	composer mailComposer
	options  []gomail.Option
}

var _ app.Channel = (*SMTP)(nil)

// NewSMTP checks cfg. It opens no connection.
func NewSMTP(cfg SMTPConfig) (*SMTP, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 20 * time.Second
	}
	if cfg.TLS == "" {
		cfg.TLS = TLSMandatory
	}
	if cfg.Port == 0 {
		cfg.Port = 587
		if cfg.TLS == TLSImplicit {
			cfg.Port = 465
		}
	}
	composer, err := newMailComposer(cfg.From)
	if err != nil {
		return nil, err
	}
	s := &SMTP{cfg: cfg, composer: composer}
	if err := s.setOptions(); err != nil {
		return nil, err
	}
	if _, err := s.client(nil); err != nil {
		return nil, fmt.Errorf("smtp to %q: %w", cfg.Host, err)
	}
	return s, nil
}

func (s *SMTP) setOptions() error {
	s.options = []gomail.Option{gomail.WithPort(s.cfg.Port), gomail.WithTimeout(s.cfg.Timeout), gomail.WithoutNoop(), gomail.WithoutRset()}
	switch s.cfg.TLS {
	case TLSMandatory:
		s.options = append(s.options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	case TLSOpportunistic:
		s.options = append(s.options, gomail.WithTLSPolicy(gomail.TLSOpportunistic))
	case TLSImplicit:
		s.options = append(s.options, gomail.WithSSL())
	case TLSNone:
		s.options = append(s.options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		return fmt.Errorf("smtp TLS policy %q: use %s, %s, %s or %s", s.cfg.TLS, TLSMandatory, TLSImplicit, TLSOpportunistic, TLSNone)
	}
	s.options = append(s.options, gomail.WithTLSConfig(s.tlsConfig()))
	if s.cfg.Helo != "" {
		s.options = append(s.options, gomail.WithHELO(s.cfg.Helo))
	}
	if s.cfg.Username != "" {
		// Auto-discovery picks the strongest mechanism that the server offers,
		// and none that shows the password on a connection without TLS.
		s.options = append(s.options, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover),
			gomail.WithUsername(s.cfg.Username), gomail.WithPassword(s.cfg.Password))
	}
	return nil
}

func (s *SMTP) tlsConfig() *tls.Config {
	if s.cfg.TLSConfig != nil {
		return s.cfg.TLSConfig.Clone()
	}
	return &tls.Config{ServerName: s.cfg.Host, MinVersion: tls.VersionTLS12}
}

func (s *SMTP) client(dial gomail.DialContextFunc) (*gomail.Client, error) {
	options := s.options
	if dial != nil {
		options = append(options[:len(options):len(options)], gomail.WithDialContextFunc(dial))
	}
	return gomail.NewClient(s.cfg.Host, options...)
}

// Idempotent implements app.Channel.
func (s *SMTP) Idempotent() bool { return false }

// Send implements app.Channel. The reference is the server's last answer where
// it is short and plain, as it usually names the queue id.
func (s *SMTP) Send(ctx context.Context, m app.Message) (string, error) {
	msg, err := s.composer.compose(m)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	line := &wire{addr: net.JoinHostPort(strings.Trim(s.cfg.Host, "[]"), strconv.Itoa(s.cfg.Port))}
	if s.cfg.TLS == TLSImplicit {
		line.tls = s.tlsConfig()
	}
	// The connection is ours to close, whatever happens: go-mail's own farewell
	// would first end an unfinished mail with the dot that makes it complete.
	defer line.close()
	stop := context.AfterFunc(ctx, line.close)
	defer stop()
	client, err := s.client(line.dial)
	if err != nil {
		return "", fmt.Errorf("smtp to %q: %w", s.cfg.Host, err)
	}
	smtpClient, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return "", s.beforeMail(err)
	}
	if err := client.SendWithSMTPClient(smtpClient, msg); err != nil && !msg.IsDelivered() {
		return "", s.verdict(err)
	}
	// Taken. A farewell that fails changes nothing.
	_ = client.CloseWithSMTPClient(smtpClient)
	return plainReference(msg.ServerResponse()), nil
}

// beforeMail is an error of dial, TLS, greeting or authentication: the mail was
// not offered, and it may be any mail's turn next.
func (s *SMTP) beforeMail(err error) error {
	return fmt.Errorf("smtp connection to %s: %w", s.cfg.Host, err)
}

// verdict tells what an error during the mail means. It never repeats the
// server's text or go-mail's, which name the recipient.
func (s *SMTP) verdict(err error) error {
	var sendErr *gomail.SendError
	if !errors.As(err, &sendErr) {
		return fmt.Errorf("smtp to %s: %w", s.cfg.Host, app.ErrOutcomeUnknown)
	}
	code := sendErr.ErrorCode()
	at := fmt.Sprintf("smtp to %s: %s: code %d", s.cfg.Host, sendErr.Reason, code)
	switch {
	case code >= 500 && !accountFault(code):
		return &app.RefusedError{Reason: "smtp_" + strconv.Itoa(code)}
	case code != 0:
		return errors.New(at)
	case sendErr.Reason == gomail.ErrSMTPDataClose:
		// The whole mail is out and the answer did not come.
		return fmt.Errorf("%s: %w", at, app.ErrOutcomeUnknown)
	case sendErr.Reason == gomail.ErrNoUnencoded, sendErr.Reason == gomail.ErrGetSender, sendErr.Reason == gomail.ErrGetRcpts:
		return &app.RefusedError{Reason: "smtp_unsendable"}
	default:
		return errors.New(at)
	}
}

// accountFault tells codes about the service's account from codes about the
// mail: an operator mends them, so the mail is not refused.
func accountFault(code int) bool {
	return code == 530 || code == 534 || code == 535 || code == 538
}

func plainReference(answer string) string {
	if len(answer) > 100 || strings.ContainsFunc(answer, func(r rune) bool { return r < ' ' || r > '~' || r == '@' }) {
		return ""
	}
	return answer
}

// wire holds the one connection of a send, so that it can be closed from
// outside at any moment.
type wire struct {
	addr string
	tls  *tls.Config

	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

func (w *wire) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var (
		conn net.Conn
		err  error
	)
	if w.tls != nil {
		conn, err = (&tls.Dialer{Config: w.tls}).DialContext(ctx, network, w.addr)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, w.addr)
	}
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	w.conn = conn
	return conn, nil
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.conn != nil {
		w.conn.Close()
	}
}
