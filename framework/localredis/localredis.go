// Package localredis gives a machine that has no Redis one for as long as a
// program runs.
package localredis

import (
	"context"
	"log/slog"
)

// Options configures Start. The zero value works.
type Options struct {
	// Dir keeps the data between runs. Empty: nothing is kept.
	Dir string
	// Logger receives what Start decides. Default slog.Default().
	Logger *slog.Logger
}

// Server is a running Redis.
type Server struct{ url, kind string }

// Start starts a server and returns once it answers.
func Start(ctx context.Context, opts Options) (*Server, error) { return &Server{}, nil }

// URL returns the server's address as redisstream.Config takes it.
func (s *Server) URL() string { return s.url }

// Kind returns KindServer or KindEmbedded.
func (s *Server) Kind() string { return s.kind }

// Close stops the server.
func (s *Server) Close() error { return nil }
