// Package smtptest is an SMTP server for tests that a test can make misbehave.
package smtptest

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Mail is one mail that the server took.
type Mail struct {
	From, To string
	Data     string
	// TLS tells whether it came over TLS; Username who sent it.
	TLS      bool
	Username string
}

// Server is a running server. Set its fields before the first connection.
type Server struct {
	// Replies replaces the answer to a verb ("RCPT") or to the end of a mail
	// ("."). An empty answer drops the connection.
	Replies map[string]string
	// NoTLS does not offer STARTTLS.
	NoTLS bool
	// OnData runs after the answer to DATA, in place of reading the mail.
	OnData func(c net.Conn)
	// OnDot runs when a whole mail is in, before its answer.
	OnDot func()
	// Password is the only one that AUTH takes.
	Password string

	// Host and Port are where it listens; Roots trust its certificate.
	Host  string
	Port  int
	Roots *x509.CertPool

	cert  tls.Certificate
	l     net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
	mails []Mail
	lines []string
}

// Start starts a server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	s := &Server{Replies: map[string]string{}, Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, l: l, conns: map[net.Conn]bool{}}
	s.certify(t)
	s.wg.Go(s.serve)
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

// Mails returns the mails that were taken so far.
func (s *Server) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.mails...)
}

// Lines returns the commands that came so far.
func (s *Server) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.lines...)
}

// TLSConfig trusts the server.
func (s *Server) TLSConfig() *tls.Config { return &tls.Config{RootCAs: s.Roots, ServerName: s.Host} }

func (s *Server) certify(t testing.TB) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "smtptest"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatalf("make a certificate: %v", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("parse the certificate: %v", err)
	}
	s.Roots = x509.NewCertPool()
	s.Roots.AddCert(parsed)
	s.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (s *Server) serve() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			defer c.Close()
			s.talk(c)
		})
	}
}

type session struct {
	conn net.Conn
	r    *bufio.Reader
	mail Mail
}

func (s *Server) talk(c net.Conn) {
	x := &session{conn: c, r: bufio.NewReader(c)}
	fmt.Fprint(c, "220 smtptest\r\n")
	for {
		line, err := x.r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		s.mu.Lock()
		s.lines = append(s.lines, line)
		s.mu.Unlock()
		verb, rest, _ := strings.Cut(line, " ")
		if !s.answer(x, strings.ToUpper(verb), rest) {
			return
		}
	}
}

// reply sends the scripted answer, or the usual one. It returns whether the
// usual one was sent, and whether the connection goes on.
func (s *Server) reply(x *session, verb, usual string) (ok, goOn bool) {
	answer, scripted := s.Replies[verb]
	if !scripted {
		answer = usual
	}
	if answer == "" {
		return false, false
	}
	_, err := fmt.Fprint(x.conn, answer+"\r\n")
	return !scripted, err == nil
}

func (s *Server) answer(x *session, verb, rest string) (goOn bool) {
	switch verb {
	case "EHLO", "HELO":
		lines := "250-smtptest\r\n250-8BITMIME\r\n250-AUTH PLAIN"
		if !s.NoTLS && !x.mail.TLS {
			lines += "\r\n250-STARTTLS"
		}
		_, goOn = s.reply(x, verb, lines+"\r\n250 SMTPUTF8")
	case "STARTTLS":
		if ok, on := s.reply(x, verb, "220 go ahead"); !ok {
			return on
		}
		secure := tls.Server(x.conn, &tls.Config{Certificates: []tls.Certificate{s.cert}})
		x.conn, x.r, x.mail.TLS = secure, bufio.NewReader(secure), true
		goOn = true
	case "AUTH":
		goOn = s.auth(x, rest)
	case "MAIL":
		x.mail.From = between(rest)
		_, goOn = s.reply(x, verb, "250 ok")
	case "RCPT":
		x.mail.To = between(rest)
		_, goOn = s.reply(x, verb, "250 ok")
	case "DATA":
		goOn = s.data(x)
	case "QUIT":
		s.reply(x, verb, "221 bye")
	default:
		_, goOn = s.reply(x, verb, "250 ok")
	}
	return goOn
}

func (s *Server) auth(x *session, rest string) bool {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(rest, "PLAIN "))
	parts := strings.Split(string(raw), "\x00")
	if err != nil || len(parts) != 3 || parts[2] != s.Password {
		_, err := fmt.Fprint(x.conn, "535 5.7.8 no\r\n")
		return err == nil
	}
	x.mail.Username = parts[1]
	_, goOn := s.reply(x, "AUTH", "235 ok")
	return goOn
}

func (s *Server) data(x *session) bool {
	if ok, on := s.reply(x, "DATA", "354 go ahead"); !ok {
		return on
	}
	if s.OnData != nil {
		s.OnData(x.conn)
		return false
	}
	var b strings.Builder
	for {
		line, err := x.r.ReadString('\n')
		if err != nil {
			return false
		}
		if line == ".\r\n" {
			break
		}
		b.WriteString(strings.TrimPrefix(line, "."))
	}
	x.mail.Data = b.String()
	if s.OnDot != nil {
		s.OnDot()
	}
	ok, goOn := s.reply(x, ".", "250 2.0.0 queued as 4711")
	if ok || strings.HasPrefix(s.Replies["."], "250") {
		s.mu.Lock()
		s.mails = append(s.mails, x.mail)
		s.mu.Unlock()
	}
	return goOn
}

func between(s string) string {
	_, s, _ = strings.Cut(s, "<")
	s, _, _ = strings.Cut(s, ">")
	return s
}
