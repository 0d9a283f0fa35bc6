package framework_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(endingServers{m}) }

// endingServers ends what several tests shared, before leaks are looked for.
type endingServers struct{ *testing.M }

func (m endingServers) Run() int {
	defer endShared()
	return m.M.Run()
}

// thing is the data of the tests' events.
type thing struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

func (d thing) Validate() error { return events.Require("name", d.Name) }

var (
	made    = events.Define[thing]("thing.made", "1.0")
	counted = events.Define[thing]("thing.counted", "1.0")
	shipped = events.Define[thing]("thing.shipped", "1.0")
)

// fixture is one service on memory and SQLite.
type fixture struct {
	*frameworktest.System
	t    *testing.T
	conn *connect.Connections
	app  *framework.App
}

type configure func(*framework.Config)

func setup(t *testing.T, configures ...configure) *fixture {
	t.Helper()
	return setupOn(t, frameworktest.New(t), configures...)
}

func setupOn(t *testing.T, s *frameworktest.System, configures ...configure) *fixture {
	t.Helper()
	conn := s.Connections()
	cfg := framework.Config{
		Service: "things", Profile: frameworktest.Profile(), DB: conn.DB, Dialect: conn.Dialect, Broker: s.Broker(),
		OutboxWaker: conn.Waker, Logger: frameworktest.Logger(t),
	}
	for _, c := range configures {
		c(&cfg)
	}
	app, err := framework.New(cfg)
	require.NoError(t, err)
	if cfg.DB != nil {
		_, err = cfg.DB.ExecContext(context.Background(), "CREATE TABLE IF NOT EXISTS effects (event_id TEXT NOT NULL, n BIGINT NOT NULL)")
		require.NoError(t, err)
	}
	return &fixture{System: s, t: t, conn: conn, app: app}
}

func withoutDB(c *framework.Config) { c.DB, c.Dialect, c.OutboxWaker = nil, "", nil }

func (f *fixture) start() *frameworktest.Running {
	f.t.Helper()
	return f.Start(f.app)
}

// effects returns how many rows the handlers' transactions left.
func (f *fixture) effects() int {
	f.t.Helper()
	return f.count("SELECT count(*) FROM effects")
}

func (f *fixture) count(query string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.conn.DB.QueryRowContext(context.Background(), query, args...).Scan(&n))
	return n
}

func write(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects (event_id, n) VALUES ($1, $2)", e.ID, e.Data.N)
	return err
}

var quiet = slog.New(slog.DiscardHandler)

var errBroken = errors.New("broken")

func await[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(frameworktest.Timeout):
		require.FailNow(t, fmt.Sprintf("%s did not happen in %s", what, frameworktest.Timeout))
		panic("unreachable")
	}
}
