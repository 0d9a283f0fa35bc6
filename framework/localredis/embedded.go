package localredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

const (
	// saveEvery is how often the embedded server's data is looked at; saving
	// takes at most one part in saveShare of the time.
	saveEvery = time.Second
	saveShare = 10
)

// embedded is miniredis with a clock and, where it has a folder, a memory.
type embedded struct {
	m      *miniredis.Miniredis
	dir    string // empty: nothing is kept
	log    *slog.Logger
	quit   chan struct{}
	done   sync.WaitGroup
	saved  []byte
	failed bool
}

// startEmbedded runs miniredis. Its keys expire only when its clock is moved,
// so that is done here, once a second.
func startEmbedded(ctx context.Context, opts Options) (*Server, error) {
	e := &embedded{m: miniredis.NewMiniRedis(), log: opts.Logger, quit: make(chan struct{})}
	var old snapshot
	if opts.Dir != "" {
		dir, err := makeDir(opts.Dir)
		if err != nil {
			return nil, err
		}
		// Two servers would write over each other's file.
		if s := adoptEmbedded(ctx, dir); s != nil {
			return s, nil
		}
		if old, err = readSnapshot(dir); err != nil {
			return nil, fmt.Errorf("localredis: %w", err)
		}
		e.dir = dir
	}
	// It is filled before anybody can know its final address.
	if err := e.private(func(port int) error {
		client := newClient(port)
		defer client.Close()
		return old.restore(ctx, e.m, client)
	}); err != nil {
		return nil, fmt.Errorf("localredis: restore what the embedded Redis saved in %s: %w", e.dir, err)
	}
	e.m.Ctx, e.m.CtxCancel = context.WithCancel(context.Background())
	if err := e.m.StartAddr(net.JoinHostPort("127.0.0.1", strconv.Itoa(opts.Port))); err != nil {
		return nil, fmt.Errorf("localredis: start the embedded server: %w", err)
	}
	port, err := strconv.Atoi(e.m.Port())
	if err != nil {
		e.m.Close()
		return nil, fmt.Errorf("localredis: start the embedded server: %w", err)
	}
	if e.dir != "" {
		_ = writeRecord(e.dir, record{Port: port, Owner: os.Getpid(), Embedded: true})
		e.every(saveEvery, func() { e.saveLive(port) })
	}
	e.every(time.Second, func() { e.m.FastForward(time.Second) })
	return newServer(redisURL(port), KindEmbedded, e.stop), nil
}

// every runs do again and again until the end.
func (e *embedded) every(pause time.Duration, do func()) {
	e.done.Go(func() {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for {
			select {
			case <-e.quit:
				return
			case <-timer.C:
			}
			began := time.Now()
			do()
			timer.Reset(max(pause, saveShare*time.Since(began)))
		}
	})
}

// private runs do while the server listens on a port that nobody was told.
func (e *embedded) private(do func(port int) error) error {
	if err := e.m.StartAddr("127.0.0.1:0"); err != nil {
		return err
	}
	defer e.m.Close()
	port, err := strconv.Atoi(e.m.Port())
	if err != nil {
		return err
	}
	return do(port)
}

// saveLive saves beside the server's work. A failure is told once and tried
// again.
func (e *embedded) saveLive(port int) {
	err := e.save(port)
	if err != nil && !e.failed {
		e.log.Error("the embedded Redis can't save its data: what it holds is lost when it ends", "dir", e.dir, "error", err)
	}
	e.failed = err != nil
}

// save writes the file when it would differ.
func (e *embedded) save(port int) error {
	client := newClient(port)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	s, err := take(ctx, e.m, client)
	if err != nil {
		return err
	}
	b, err := s.encode()
	if err != nil {
		return err
	}
	if bytes.Equal(b, e.saved) {
		return nil
	}
	if err := writeSnapshot(e.dir, b); err != nil {
		return err
	}
	e.saved = b
	return nil
}

// saveTimeout bounds one look at the data.
const saveTimeout = 30 * time.Second

// stop ends the server and then saves, so that nothing changes meanwhile.
func (e *embedded) stop() error {
	close(e.quit)
	e.done.Wait()
	e.m.Close()
	if e.dir == "" {
		return nil
	}
	err := e.private(e.save)
	if err != nil {
		err = fmt.Errorf("localredis: save the embedded Redis in %s: %w", e.dir, err)
	}
	if gone := os.Remove(filepath.Join(e.dir, recordName)); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// adoptEmbedded returns the embedded server that another program runs on dir, or
// nil.
func adoptEmbedded(ctx context.Context, dir string) *Server {
	r, ok := readRecord(ctx, dir)
	if !ok || !r.Embedded || !alive(r.Owner) {
		return nil
	}
	client := newClient(r.Port)
	defer client.Close()
	if client.Ping(ctx).Err() != nil {
		return nil
	}
	return newServer(redisURL(r.Port), KindShared, func() error { return nil })
}
