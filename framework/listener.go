package framework

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/internal/httpapi"
)

// listener is one HTTP server on one address.
type listener struct {
	name string
	srv  *http.Server
	ln   net.Listener
	done chan struct{}
}

// listen opens the address and serves until shutdown. A server that ends by
// itself is reported to failed.
func listen(ctx context.Context, name, key, addr string, h http.Handler, p config.HTTP, logger *slog.Logger, failed func(error)) (*listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("framework: %s listener on %q: %w: free the address, or set %s (%s)", name, addr, err, key, config.EnvName(key))
	}
	base := context.WithoutCancel(ctx)
	l := &listener{name: name, ln: ln, done: make(chan struct{})}
	l.srv = &http.Server{
		Handler:           h,
		ReadTimeout:       p.ReadTimeout,
		ReadHeaderTimeout: p.ReadTimeout,
		WriteTimeout:      p.WriteTimeout,
		IdleTimeout:       p.IdleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	go func() {
		defer close(l.done)
		if err := l.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("framework: %s listener on %q ended: %w", name, ln.Addr(), err))
		}
	}()
	return l, nil
}

func (l *listener) addr() string {
	if l == nil {
		return ""
	}
	return l.ln.Addr().String()
}

// shutdown stops accepting, waits for running requests until ctx ends, then
// breaks them off.
func (l *listener) shutdown(ctx context.Context) error {
	if l == nil {
		return nil
	}
	err := l.srv.Shutdown(ctx)
	if err != nil {
		_ = l.srv.Close()
		err = fmt.Errorf("framework: %s listener: requests were still running at the drain's deadline: %w", l.name, err)
	}
	select {
	case <-l.done:
	case <-time.After(time.Second):
	}
	return err
}

// Handler returns the API as its listener serves it, for tests that need no
// port. Without App.HTTP every path is not found.
func (a *App) Handler() http.Handler {
	routes := a.routes
	if routes == nil {
		routes = http.NotFoundHandler()
	}
	return httpapi.Wrap(routes, httpapi.Config{
		Logger: a.logger, Tracer: a.cfg.Tracer, Seconds: a.stats.httpSeconds,
		MaxBodyBytes: a.cfg.Profile.HTTP.MaxBodyBytes, Context: a.Context,
	})
}
