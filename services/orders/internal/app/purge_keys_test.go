package app

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// scriptedKeys answers DeleteExpired from a script and tells of each call.
type scriptedKeys struct {
	answers []int
	fail    error
	calls   chan int // receives the limit
}

func (s *scriptedKeys) Claim(context.Context, *sql.Tx, Key, time.Time) (Key, bool, error) {
	return Key{}, false, errors.New("not part of this test")
}

func (s *scriptedKeys) DeleteExpired(_ context.Context, _ time.Time, limit int) (int, error) {
	s.calls <- limit
	if len(s.answers) == 0 {
		return 0, s.fail
	}
	n := s.answers[0]
	s.answers = s.answers[1:]
	return n, nil
}

func TestPurgeGoesOnWhileBatchesAreFull(t *testing.T) {
	t.Parallel()
	keys := &scriptedKeys{answers: []int{purgeBatch, purgeBatch, 3}, calls: make(chan int, 10)}
	n, err := PurgeKeys{Keys: keys}.Purge(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2*purgeBatch+3, n)
	require.Len(t, keys.calls, 3)
	require.Equal(t, purgeBatch, <-keys.calls)
}

func TestPurgeOutlivesAFailureAndEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	var log bytes.Buffer
	keys := &scriptedKeys{fail: errors.New("database is away"), calls: make(chan int)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		PurgeKeys{Keys: keys, Logger: slog.New(slog.NewTextHandler(&log, nil)), Every: time.Millisecond}.Run(ctx)
	}()
	for range 3 {
		<-keys.calls
	}
	cancel()
	for {
		select {
		case <-keys.calls:
			continue
		case <-ended:
		}
		break
	}
	require.Contains(t, log.String(), "database is away")
}
