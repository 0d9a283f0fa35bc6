package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

const (
	// maxAnswer bounds how much of an answer is read.
	maxAnswer = 64 << 10
	// maxThrottle bounds how long another side may ask for patience.
	maxThrottle = 15 * time.Minute
)

// poster posts JSON to one address and tells what the answer means.
type poster struct {
	what   string // "webhook", "sms": for errors and reasons
	url    string
	client *http.Client
	clock  func() time.Time
}

// newPoster refuses an address that would send customers' data in the clear
// over a network.
func newPoster(what, address string, timeout time.Duration) (*poster, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%s address is not a URL: give one such as https://provider.example/messages", what)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return nil, fmt.Errorf("%s address has scheme %q on host %q: use https (http is for this machine only)", what, u.Scheme, u.Hostname())
	}
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	return &poster{
		what: what, url: address, clock: time.Now,
		client: &http.Client{
			Timeout:   timeout,
			Transport: transport,
			// A redirect would carry the message to an address that nobody
			// configured.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// post returns the answer's body when the other side took the message.
func (p *poster) post(ctx context.Context, body []byte, headers map[string]string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: make the request: %w", p.what, withoutURL(err))
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "headrace-notifications")
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := p.client.Do(req)
	if err != nil {
		// It may have arrived; the key makes asking again safe.
		return nil, fmt.Errorf("%s: %w: %w", p.what, app.ErrOutcomeUnknown, withoutURL(err))
	}
	defer res.Body.Close()
	answer, readErr := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		if readErr != nil {
			return nil, fmt.Errorf("%s: read the answer: %w: %w", p.what, app.ErrOutcomeUnknown, readErr)
		}
		return answer, nil
	}
	err = fmt.Errorf("%s: answered %d", p.what, res.StatusCode)
	switch {
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusServiceUnavailable:
		if after := p.retryAfter(res.Header.Get("Retry-After")); after > 0 {
			return nil, &app.ThrottledError{After: after, Err: err}
		}
		return nil, err
	case res.StatusCode >= 500,
		res.StatusCode == http.StatusRequestTimeout, res.StatusCode == http.StatusConflict, res.StatusCode == http.StatusTooEarly,
		// Credentials are an operator's to mend; the message is not refused.
		res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		return nil, err
	default:
		return nil, &app.RefusedError{Reason: p.what + "_" + strconv.Itoa(res.StatusCode)}
	}
}

// retryAfter reads a Retry-After in seconds or as a date; 0 when there is none
// that makes sense.
func (p *poster) retryAfter(value string) time.Duration {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.Atoi(value); err == nil {
		if seconds < 0 {
			return 0
		}
		return min(time.Duration(min(seconds, 1<<20))*time.Second, maxThrottle)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(p.clock()), 0), maxThrottle)
}

// withoutURL drops the address from an error: its query may hold a secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
