package httpgateway

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/headrace-go/headrace/framework"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 10

// StatusError is an answer of the provider that is no outcome.
type StatusError struct {
	Path string
	Code int
	// Reason is the provider's code, shortened; it may be empty.
	Reason string
}

// Error names the path, the status and the provider's code.
func (e *StatusError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("provider answered %s with %d", e.Path, e.Code)
	}
	return fmt.Sprintf("provider answered %s with %d (%s)", e.Path, e.Code, e.Reason)
}

// ask sends one request through the breaker and reads its answer.
func (g *Gateway) ask(ctx context.Context, path, key string, body any) (answer, error) {
	payload, err := json.Marshal(body)
	if err != nil {
		return answer{}, framework.Permanent(fmt.Errorf("encode the request to %s: %w", path, err))
	}
	return g.breaker.run(ctx, func() (answer, error) { return g.send(ctx, path, key, payload) })
}

func (g *Gateway) send(ctx context.Context, path, key string, payload []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.cfg.BaseURL+path, bytes.NewReader(payload))
	if err != nil {
		return answer{}, framework.Permanent(fmt.Errorf("make the request to %s: %w", path, err))
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Authorization", "Bearer "+g.cfg.APIKey)
	if g.cfg.SigningKey != "" {
		stamp := strconv.FormatInt(g.cfg.Now().Unix(), 10)
		req.Header.Set("X-Timestamp", stamp)
		req.Header.Set("X-Signature", Sign(g.cfg.SigningKey, stamp, req.Method, req.URL.EscapedPath(), key, payload))
	}
	res, err := g.cfg.Client.Do(req)
	if err != nil {
		return answer{}, noAnswerError{fmt.Errorf("ask the provider: %w", err)}
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return answer{}, noAnswerError{fmt.Errorf("read the provider's answer to %s: %w", path, err)}
	}
	if len(raw) > maxAnswer {
		return answer{}, noAnswerError{fmt.Errorf("read the provider's answer to %s: it is larger than %d bytes", path, maxAnswer)}
	}
	return g.read(path, res, raw)
}

// read sorts an answer. A 2xx that is no JSON came from something in between,
// so its outcome is not known and it is asked again.
func (g *Gateway) read(path string, res *http.Response, raw []byte) (answer, error) {
	var a answer
	malformed := json.Unmarshal(raw, &a)
	status := &StatusError{Path: path, Code: res.StatusCode, Reason: clip(a.Reason)}
	switch code := res.StatusCode; {
	case code >= 200 && code < 300:
		if malformed != nil {
			return answer{}, noAnswerError{fmt.Errorf("read the provider's answer to %s: %w", path, malformed)}
		}
		return a, nil
	case code == http.StatusPaymentRequired:
		a.Status = "declined"
		return a, nil
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		if after, ok := g.retryAfter(res.Header.Get("Retry-After")); ok {
			return answer{}, framework.RetryAfter(status, after)
		}
		return answer{}, status
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusConflict,
		code == http.StatusUnauthorized, code == http.StatusForbidden, code >= 500:
		return answer{}, status
	default:
		return answer{}, framework.Permanent(status)
	}
}

// retryAfter reads the header in both of its forms.
func (g *Gateway) retryAfter(header string) (time.Duration, bool) {
	var after time.Duration
	if seconds, err := strconv.ParseInt(header, 10, 32); err == nil && seconds >= 0 {
		after = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		after = at.Sub(g.cfg.Now())
	} else {
		return 0, false
	}
	return min(max(after, 0), g.cfg.MaxRetryAfter), true
}

// Sign returns the X-Signature of a request, as a provider computes it too.
func Sign(key, timestamp, method, path, idempotencyKey string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "%s.%s.%s.%s.", timestamp, method, path, idempotencyKey)
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

// noAnswerError says that the provider gave no answer that could be read, so
// the outcome is not known.
type noAnswerError struct{ error }

func (e noAnswerError) Unwrap() error { return e.error }

// unhealthy tells whether err says that the provider can't serve: no answer, a
// 5xx, or credentials that it refuses. Other answers show that it is alive.
func unhealthy(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Code >= 500 || status.Code == http.StatusUnauthorized || status.Code == http.StatusForbidden
	}
	var none noAnswerError
	return errors.As(err, &none)
}
