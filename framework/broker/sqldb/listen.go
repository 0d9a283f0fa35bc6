package sqldb

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// channel carries the names of tables that got messages. A name is short, so the
// 8,000 bytes that a notification holds are never met, whatever a message's size.
const channel = "headrace_sql"

// tellEvery spaces the notifications: commits that notify queue on one lock of
// the whole server, so they are few and stay out of the publishers'
// transactions.
const tellEvery = 5 * time.Millisecond

const (
	tellTimeout    = 2 * time.Second
	connectTimeout = 10 * time.Second
	listenBackoff  = 100 * time.Millisecond
	listenCap      = 5 * time.Second
	// keepalive bounds how long a connection that the network swallowed counts as
	// listening.
	keepalive = 30 * time.Second
)

// listener keeps one connection outside the pool.
type listener struct{ cfg *pgx.ConnConfig }

// remote tells whether other processes' publishes are announced here.
func (w *waker) remote(ctx context.Context) bool {
	if !w.canNotify() {
		return false
	}
	conn, err := w.b.db.Conn(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.Raw(func(c any) error {
		if pg, ok := c.(*stdlib.Conn); ok {
			cfg := pg.Conn().Config().Copy()
			cfg.OnNotification = nil // else they go to the connection that this one is a copy of
			w.listen = &listener{cfg: cfg}
		}
		return nil
	})
	return w.listen != nil
}

// startListening is called with the lock held; the first call starts it.
func (w *waker) startListening() {
	l := w.listen
	if l == nil || w.closed {
		return
	}
	w.listen = nil
	w.wg.Go(func() { w.listening(w.ctx, l) })
}

// listening keeps LISTEN up, with backoff, until ctx ends. Meanwhile polling
// finds what was missed.
func (w *waker) listening(ctx context.Context, l *listener) {
	pause := listenBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := w.receive(ctx, l)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > listenCap {
			pause = listenBackoff
		}
		w.b.cfg.Logger.WarnContext(ctx, "LISTEN ended; polling until it is back", "error", err, "retry_in", pause)
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, listenCap)
	}
}

func (w *waker) receive(ctx context.Context, l *listener) error {
	dial, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(dial, l.cfg)
	if err != nil {
		return err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(bye)
	}()
	if _, err := conn.Exec(dial, "LISTEN "+channel); err != nil {
		return err
	}
	w.all()
	for {
		wait, cancel := context.WithTimeout(ctx, keepalive)
		n, err := conn.WaitForNotification(wait)
		quiet := wait.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			w.here(n.Payload)
		case quiet && !conn.IsClosed():
			ping, cancel := context.WithTimeout(ctx, connectTimeout)
			err := conn.Ping(ping)
			cancel()
			if err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// tellOthers sends what gathered, at most every tellEvery, until there is
// nothing left.
func (w *waker) tellOthers() {
	for {
		w.mu.Lock()
		if len(w.tell) == 0 || w.closed {
			w.telling = false
			w.mu.Unlock()
			return
		}
		names := make([]string, 0, len(w.tell))
		for name := range w.tell {
			names = append(names, name)
		}
		clear(w.tell)
		w.mu.Unlock()

		for _, name := range names {
			ctx, cancel := context.WithTimeout(w.ctx, tellTimeout)
			_, _ = w.b.db.ExecContext(ctx, notifyQuery, channel, name) // polling is the net
			cancel()
		}
		timer := time.NewTimer(tellEvery)
		select {
		case <-w.ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

const notifyQuery = `SELECT pg_notify($1, $2)`
