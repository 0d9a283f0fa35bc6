package program

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/headrace-go/headrace/framework/config"
)

const healthcheckTimeout = 5 * time.Second

// healthcheck asks the service whose admin listener the settings name whether it
// is ready: an image without a shell has no other client.
func (p Program[S]) healthcheck(ctx context.Context, c Call) error {
	_, env, err := p.load(c)
	if err != nil {
		return err
	}
	addr := env.profile.Admin.Addr
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "0" {
		return fmt.Errorf("healthcheck: admin.addr (%s) is %q: it must name a port", config.EnvName("admin.addr"), addr)
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: not ready: %s", res.Status)
	}
	return nil
}
