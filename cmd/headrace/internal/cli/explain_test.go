package cli

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a service")
	}
	var out, errs bytes.Buffer
	require.Equal(t, exitOK, Main(context.Background(), []string{"explain", "orders", "--env", "local"}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "orders on redisstream, profile local")
	require.Contains(t, out.String(), "orders.confirm-order.dlq")

	require.Equal(t, exitUsage, Main(context.Background(), []string{"explain", "nobody"}, &out, &errs))
	require.Contains(t, errs.String(), `no service "nobody"`)
	require.Equal(t, exitError, Main(context.Background(), []string{"explain", "--dir", t.TempDir()}, &out, &errs))
}
