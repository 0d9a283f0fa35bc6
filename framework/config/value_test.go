package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
)

func TestValue(t *testing.T) {
	t.Parallel()
	p := config.Default()
	p.Database.DSN = "postgres://u:secret@h/db"
	require.Equal(t, "30s", config.Value(p, "delivery.lease"))
	require.Equal(t, "5", config.Value(p, "delivery.max_attempts"))
	require.NotContains(t, config.Value(p, "database.dsn"), "secret")
	require.NotEmpty(t, config.Value(p, "database.dsn"))
	for _, none := range []string{"", "delivery", "delivery.leas", "delivery.lease.x"} {
		require.Empty(t, config.Value(p, none), none)
	}
}
