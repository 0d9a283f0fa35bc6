package redisinbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/inbox/inboxtest"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	client := testenv.Redis(t).Client()
	first, err := New(Config{Client: client})
	require.NoError(t, err)
	second, err := New(Config{Client: client})
	require.NoError(t, err)
	inboxtest.Run(t, inboxtest.Harness{
		First: first, Second: second,
		Holds: func(ctx context.Context, key string) (bool, error) { // Redis expires keys itself
			n, err := client.Exists(ctx, DefaultPrefix+key).Result()
			return n > 0, err
		},
	})
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	_, err := New(Config{})
	require.ErrorContains(t, err, "Client is nil")
}
