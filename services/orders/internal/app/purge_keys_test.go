package app

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	require.NoError(t, PurgeKeys{Keys: keys}.Purge(t.Context()))
	require.Empty(t, keys.answers, "all 2*purgeBatch+3 are gone")
	require.Len(t, keys.calls, 3)
	require.Equal(t, purgeBatch, <-keys.calls)
}

func TestPurgeEndsWithAFailure(t *testing.T) {
	t.Parallel()
	keys := &scriptedKeys{answers: []int{purgeBatch}, fail: errors.New("database is away"), calls: make(chan int, 10)}
	require.ErrorIs(t, PurgeKeys{Keys: keys}.Purge(t.Context()), keys.fail)
	require.Len(t, keys.calls, 2)
}
