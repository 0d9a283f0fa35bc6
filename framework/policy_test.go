package framework_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/pkg/events"
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
		return opened(t, p)
	}},
	{"sql+postgres", func(t *testing.T, p *config.Profile) *connect.Connections {
		dsn := config.Secret(testenv.PostgresDSN(t))
		p.Database.Driver, p.Database.DSN = "postgres", dsn
		p.Broker.Kind, p.Broker.URL = "sql", dsn
		return opened(t, p)
	}},
	{"sns+sqlite", func(t *testing.T, p *config.Profile) *connect.Connections {
		p.Database.Driver, p.Database.DSN = "sqlite", config.Secret(filepath.Join(t.TempDir(), "service.db"))
		p.Broker.Kind, p.Broker.Prefix = "sns", "t"+strings.ReplaceAll(events.NewID(), "-", "")[20:]
		p.Broker.AWS.Endpoint, p.Broker.AWS.Region = sharedAWS(t), "us-east-1"
		p.Broker.AWS.WaitTime = time.Second
		return opened(t, p)
	}},
}

// sharedAWS is one emulator for all tests: it ends after them.
func sharedAWS(t *testing.T) string {
	awsOnce.Do(func() { awsEndpoint = testenv.AWS(lasting{t}).Endpoint() })
	if awsEndpoint == "" {
		t.Skip("the emulator of AWS is not there: this did not run")
	}
	return awsEndpoint
}

var (
	awsOnce     sync.Once
	awsEndpoint string
	awsEnd      []func()
)

func endShared() {
	for _, end := range awsEnd {
		end()
	}
}

// lasting is a test whose servers outlive it.
type lasting struct{ testing.TB }

func (lasting) Cleanup(fn func()) { awsEnd = append(awsEnd, fn) }

func opened(t *testing.T, p *config.Profile) *connect.Connections {
	t.Helper()
	conn, err := connect.Open(t.Context(), *p, frameworktest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// few is n deliveries, or the fewest that the broker is trusted with.
func few(b broker.Broker, n int) int {
	if b.Features().CountsReleases {
		return 5
	}
	return n
}

// onStages runs test on each stage, with the service "things" not yet running.
func onStages(t *testing.T, set func(*framework.Config), test func(t *testing.T, f *fixture)) {
	t.Helper()
	onTheseStages(t, stages, set, test)
}

func onTheseStages(t *testing.T, stages []stage, set func(*framework.Config), test func(t *testing.T, f *fixture)) {
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
