// Package localredis gives a machine that has no Redis one for as long as a
// program runs: a redis-server found on PATH, else one embedded in the process.
package localredis

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"sync"
)

// Kinds of server.
const (
	// KindServer is a redis-server process of its own.
	KindServer = "redis-server"
	// KindShared is a server that another program started on the same Dir and
	// that is still its.
	KindShared = "redis-server (shared)"
	// KindEmbedded is miniredis in this process. It saves its data in Dir when it
	// is closed and about once a second: a process that is killed loses what came
	// after that. Its XCLAIM ignores the idle time: clients that rely on it there, unlike
	// package redisstream, need one process per consumer group.
	KindEmbedded = "embedded"
)

// Options configures Start. The zero value works.
type Options struct {
	// Dir keeps the data between runs: redis-server's in an append-only file, the
	// embedded server's in one that is written anew. The two don't read each
	// other's. It is created where it is missing. Empty: nothing is kept.
	Dir string
	// Port is the one to listen on. Default 0: a free one.
	Port int
	// Binary is the redis-server to run. Empty: the one on PATH. "none": the
	// embedded server.
	Binary string
	// Logger receives what Start decides. Default slog.Default().
	Logger *slog.Logger
}

// Server is a running Redis. It is safe for concurrent use.
type Server struct {
	url, kind string
	stop      func() error
	once      sync.Once
	err       error

	ended chan struct{}
	mu    sync.Mutex
	why   error
}

func newServer(url, kind string, stop func() error) *Server {
	return &Server{url: url, kind: kind, stop: stop, ended: make(chan struct{})}
}

// BinaryNone as Options.Binary asks for the embedded server.
const BinaryNone = "none"

// Start starts a server on a free port of 127.0.0.1 and returns once it
// answers. The server runs until Close, whatever becomes of ctx, which bounds
// only the start; it does not outlive this process. A redis-server that fails
// to start is an error; one that is not installed is not: then the server is
// embedded.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	binary := opts.Binary
	if binary == "" {
		found, err := exec.LookPath("redis-server")
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			return nil, err
		}
		if binary = found; binary == "" {
			binary = BinaryNone
		}
	}
	var s *Server
	var err error
	if binary == BinaryNone {
		s, err = startEmbedded(ctx, opts)
	} else {
		s, err = startProcess(ctx, binary, opts)
	}
	if err != nil {
		return nil, err
	}
	opts.Logger.InfoContext(ctx, "local Redis is up", "kind", s.kind, "url", s.url, "dir", opts.Dir)
	return s, nil
}

// URL returns the server's address as redisstream.Config takes it.
func (s *Server) URL() string { return s.url }

// Kind returns KindServer, KindShared or KindEmbedded.
func (s *Server) Kind() string { return s.kind }

// Done is closed when the server has ended, by Close or unasked; then Err says
// how. The end of a server that this process did not start itself (KindShared,
// and one whose owner is gone) is not noticed.
func (s *Server) Done() <-chan struct{} { return s.ended }

// Err returns how the server ended unasked, such as "signal: killed"; nil before
// Done and after Close.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// end closes Done, the first time.
func (s *Server) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
	default:
		s.why = why
		close(s.ended)
	}
}

// Close stops the server and waits for its end; a shared one goes on. It may be
// called twice.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.err = s.stop()
		s.end(nil)
	})
	return s.err
}
