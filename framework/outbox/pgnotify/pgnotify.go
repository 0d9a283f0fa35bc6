// Package pgnotify wakes outbox relays in other processes through Postgres's
// LISTEN and NOTIFY.
//
// A NOTIFY inside a transaction makes its commit take a lock that all such
// commits of the cluster share, so writers that could flush their commits
// together queue instead. Therefore nobody notifies in a business transaction
// here: a Notifier sends one NOTIFY for all the commits of a moment, afterwards,
// on a connection of its own. When the process dies in between, polling finds
// the rows.
package pgnotify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/framework/outbox"
)

// DefaultChannel is the channel of the default outbox table.
const DefaultChannel = "headrace_outbox"

// Config configures a Waker or a Notifier. The zero value of a field means its
// default.
type Config struct {
	// DSN is the database's, as pgx parses it: a direct connection, since a pooler
	// in transaction mode keeps no LISTEN. Required.
	DSN string
	// Channel is what is listened to. Lower-case letters, digits and underscores.
	// Default DefaultChannel.
	Channel string
	// Interval is the shortest time between two NOTIFYs of a Notifier. Default
	// 2 ms.
	Interval time.Duration
	// Timeout bounds connecting and each NOTIFY. Default 5 s.
	Timeout time.Duration
	// KeepAlive is how often a Waker that hears nothing checks that its connection
	// still lives. Default 30 s.
	KeepAlive time.Duration
	// Logger receives what is wrong with a Notifier. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Channel == "" {
		c.Channel = DefaultChannel
	}
	if c.Interval == 0 {
		c.Interval = 2 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

var channelName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Validate reports every field that can't work, by name, value and remedy. It
// does not print the DSN.
func (c Config) Validate() error {
	var errs []error
	if c.DSN == "" {
		errs = append(errs, errors.New("pgnotify: DSN is empty: hand in the database's"))
	} else if _, err := pgx.ParseConfig(c.DSN); err != nil {
		errs = append(errs, errors.New("pgnotify: DSN is not one that pgx can parse"))
	}
	if !channelName.MatchString(c.Channel) {
		errs = append(errs, fmt.Errorf("pgnotify: Channel is %q: use lower-case letters, digits and underscores, 63 at most", c.Channel))
	}
	if c.Interval < 0 || c.Timeout < 0 || c.KeepAlive < 0 {
		errs = append(errs, errors.New("pgnotify: Interval, Timeout and KeepAlive must be positive"))
	}
	return errors.Join(errs...)
}

func (c Config) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.DSN)
	if err != nil {
		return nil, fmt.Errorf("pgnotify: connect: %w", err)
	}
	return conn, nil
}

func (c Config) close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// Waker is an outbox.Waker on a connection of its own, outside any pool. After
// an error it connects anew at the next Wait.
type Waker struct {
	cfg Config

	mu   sync.Mutex // one Wait at a time
	conn *pgx.Conn
}

var _ outbox.Waker = (*Waker)(nil)

// NewWaker makes a Waker. It connects at the first Wait.
func NewWaker(cfg Config) (*Waker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Waker{cfg: cfg}, nil
}

// Wait returns nil after a NOTIFY, and once after each time it has connected,
// since news may have passed unheard before. An end of ctx closes the
// connection.
func (w *Waker) Wait(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		conn, err := w.cfg.connect(ctx)
		if err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `LISTEN `+w.cfg.Channel); err != nil {
			w.cfg.close(conn)
			return fmt.Errorf("pgnotify: listen: %w", err)
		}
		w.conn = conn
		return nil
	}
	err := w.wait(ctx)
	if err != nil {
		w.cfg.close(w.conn)
		w.conn = nil
		return fmt.Errorf("pgnotify: %w", err)
	}
	return nil
}

func (w *Waker) wait(ctx context.Context) error {
	for {
		quiet, cancel := context.WithTimeout(ctx, w.cfg.KeepAlive)
		_, err := w.conn.WaitForNotification(quiet)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || quiet.Err() == nil || w.conn.IsClosed() {
			return err
		}
		// Silence: a dead peer is told from a quiet one by asking.
		ping, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
		err = w.conn.Ping(ping)
		cancel()
		if err != nil {
			return fmt.Errorf("the connection is dead: %w", err)
		}
	}
}

// Close closes the connection. The Waker may be used again.
func (w *Waker) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.cfg.close(w.conn)
		w.conn = nil
	}
	return nil
}

// Notifier tells other processes' Wakers that rows were committed. Its Notify is
// made for outbox.WriterConfig.OnCommit, beside the wake of the process's own
// relay.
type Notifier struct {
	cfg  Config
	wake chan struct{}
}

// NewNotifier makes a Notifier; Run sends.
func NewNotifier(cfg Config) (*Notifier, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Notifier{cfg: cfg, wake: make(chan struct{}, 1)}, nil
}

// Notify has a NOTIFY sent soon. It never blocks.
func (n *Notifier) Notify() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends and then returns nil. While the database is away it
// tries at a bounded rate; what is not sent is found by polling.
func (n *Notifier) Run(ctx context.Context) error {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			n.cfg.close(conn)
		}
	}()
	pause := n.cfg.Interval
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		err := n.send(ctx, &conn)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			pause = n.cfg.Interval
		default:
			if pause < time.Second {
				pause = time.Second
				n.cfg.Logger.WarnContext(ctx, "outbox: relays in other processes are not woken for now; they poll", "channel", n.cfg.Channel, "error", err)
			}
			n.Notify()
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

func (n *Notifier) send(ctx context.Context, conn **pgx.Conn) error {
	if *conn == nil {
		c, err := n.cfg.connect(ctx)
		if err != nil {
			return err
		}
		*conn = c
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeout)
	defer cancel()
	if _, err := (*conn).Exec(ctx, `NOTIFY `+n.cfg.Channel); err != nil {
		n.cfg.close(*conn)
		*conn = nil
		return fmt.Errorf("pgnotify: notify: %w", err)
	}
	return nil
}
