package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// EnvAWS points the tests at a running emulator of SQS, SNS and S3, such as
// http://127.0.0.1:4566. Never at AWS itself: the tests make hundreds of queues.
const EnvAWS = "HEADRACE_TEST_AWS"

// AWSServer is an emulator of SQS, SNS and S3.
type AWSServer struct {
	t        testing.TB
	endpoint string
}

// AWS returns the emulator that HEADRACE_TEST_AWS names, or starts one of the
// test's own from where scripts/aws-emulator installed it, and stops it when the
// test ends. A test shares the one that is named: it needs names of its own.
func AWS(t testing.TB) *AWSServer {
	t.Helper()
	if endpoint := os.Getenv(EnvAWS); endpoint != "" {
		s := &AWSServer{t: t, endpoint: strings.TrimSuffix(endpoint, "/")}
		if err := s.await(context.Background()); err != nil {
			missing(t, "emulator of AWS at "+endpoint, err)
		}
		return s
	}
	script, err := awsScript()
	if err != nil {
		missing(t, "emulator of AWS (scripts/aws-emulator)", err)
	}
	if out, err := exec.Command(script, "path").CombinedOutput(); err != nil {
		missing(t, "emulator of AWS ("+EnvAWS+" is not set)", fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out))))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	cmd := exec.Command(script, "start", port)
	cmd.Env = append(os.Environ(), "WATCH_STDIN=1")
	cmd.Stderr = os.Stderr
	// The emulator ends with its input, so with this process too.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("start the emulator of AWS: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the emulator of AWS: %v", err)
	}
	s := &AWSServer{t: t, endpoint: "http://127.0.0.1:" + port}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := s.await(context.Background()); err != nil {
		t.Fatalf("the emulator of AWS on port %s does not answer: %v", port, err)
	}
	return s
}

// Endpoint is the URL that AWS clients use.
func (s *AWSServer) Endpoint() string { return s.endpoint }

// Addr is its host and port.
func (s *AWSServer) Addr() string {
	u, err := url.Parse(s.endpoint)
	if err != nil {
		s.t.Fatalf("parse %q: %v", s.endpoint, err)
	}
	return u.Host
}

func (s *AWSServer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.endpoint+"/health", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode < 500 {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awsScript is where this repository's script is.
func awsScript() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", fmt.Errorf("this binary does not know where its sources are: set %s", EnvAWS)
	}
	script := filepath.Join(filepath.Dir(file), "..", "..", "scripts", "aws-emulator")
	if _, err := os.Stat(script); err != nil {
		return "", err
	}
	return script, nil
}
