package dynamoinbox

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/inbox/inboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	cfg.Topology = TopologyEnsure
	s, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	return s
}

func TestConformanceOnTheStub(t *testing.T) {
	t.Parallel()
	client := newStub()
	cfg := Config{Client: client, MaxSkew: 200 * time.Millisecond}
	inboxtest.Run(t, inboxtest.Harness{First: open(t, cfg), Second: open(t, cfg), Margin: cfg.MaxSkew})
	require.NotContains(t, client.calls, "GetItem", "one write tells all")
}

// The emulator hands no item over with a failed condition, so it is read; and it
// removes what its TTL says.
func TestConformanceOnAnEmulator(t *testing.T) {
	t.Parallel()
	client, table := emulator(t)
	cfg := Config{Client: client, Table: table, MaxSkew: 100 * time.Millisecond}
	first, second := open(t, cfg), open(t, cfg)
	first.ttlSlack, second.ttlSlack = 0, 0
	inboxtest.Run(t, inboxtest.Harness{
		First: first, Second: second, Margin: cfg.MaxSkew,
		Holds: func(ctx context.Context, key string) (bool, error) {
			item, err := first.read(ctx, key)
			return len(item) > 0, err
		},
		Patience: 2 * time.Minute,
	})
}
