package framework_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
)

// stage is a broker and a database that the failure policy is proven on.
type stage struct {
	name string
	open func(t *testing.T, p *config.Profile) *connect.Connections
}

// stages are all of them: a new broker is one more row.
var stages = []stage{
	{"memory+sqlite", func(t *testing.T, p *config.Profile) *connect.Connections {
		return frameworktest.New(t).Connections()
	}},
	{"redis+postgres", func(t *testing.T, p *config.Profile) *connect.Connections {
		p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(t))
		p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(testenv.Redis(t).URL())
		conn, err := connect.Open(t.Context(), *p, frameworktest.Logger(t))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		return conn
	}},
}

// onStages runs test on each stage, with the service "things" not yet running.
func onStages(t *testing.T, set func(*framework.Config), test func(t *testing.T, f *fixture)) {
	t.Helper()
	for _, s := range stages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := frameworktest.Profile()
			conn := s.open(t, &p)
			cfg := framework.Config{
				Service: "things", Profile: p, DB: conn.DB, Dialect: conn.Dialect, Broker: conn.Broker,
				OutboxWaker: conn.Waker, Logger: frameworktest.Logger(t),
			}
			if set != nil {
				set(&cfg)
			}
			app, err := framework.New(cfg)
			require.NoError(t, err)
			_, err = conn.DB.ExecContext(context.Background(), "CREATE TABLE effects (event_id TEXT NOT NULL, n BIGINT NOT NULL)")
			require.NoError(t, err)
			test(t, &fixture{System: frameworktest.On(t, conn.Broker), t: t, conn: conn, app: app})
		})
	}
}
