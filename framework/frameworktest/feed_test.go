package frameworktest_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type lamp struct {
	Room string `json:"room"`
}

var (
	lit     = events.Define[lamp]("lamp.lit", "1.0")
	noticed = events.Define[lamp]("light.noticed", "1.0")
)

var files = fstest.MapFS{
	"migrations/sqlite/00001_init.sql":   {Data: []byte("-- +goose Up\nCREATE TABLE rooms (name TEXT PRIMARY KEY);\n")},
	"migrations/postgres/00001_init.sql": {Data: []byte("-- +goose Up\nCREATE TABLE rooms (name TEXT PRIMARY KEY);\n")},
	"migrations/mysql/00001_init.sql":    {Data: []byte("-- +goose Up\nCREATE TABLE rooms (name VARCHAR(64) PRIMARY KEY);\n")},
}

// A service of one handler, on each database, from its tables to its silence.
func TestAServiceOnEachDatabase(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, files, func(t *testing.T, db frameworktest.DB) {
		s := frameworktest.New(t)
		feed := s.Listen(noticed.Topic())
		app, err := framework.New(s.Config("lights", frameworktest.Profile(), db))
		require.NoError(t, err)
		app.Emits(noticed.Descriptor())
		framework.HandleTx(app, lit, "notice", func(ctx context.Context, tx *sql.Tx, e events.Event[lamp]) error {
			if _, err := tx.ExecContext(ctx, db.Dialect.Rebind("INSERT INTO rooms (name) VALUES ($1)"), e.Data.Room); err != nil {
				return err
			}
			return framework.Emit(ctx, tx, noticed.New(e.Data.Room, e.Data))
		})
		running := s.Start(app)
		require.Equal(t, "http://"+app.HTTPAddr(), running.URL())
		for i := range 2 {
			sent := s.PublishAs(events.Stamp{Source: "lamps", CorrelationID: "evening"}, lit.New("a", lamp{Room: fmt.Sprint("a", i)}))
			require.Equal(t, "lamps", sent.Source)
			got := feed.Next("light.noticed")
			require.Equal(t, sent.ID, got.Metadata.CausationID)
			require.Equal(t, "evening", got.Metadata.CorrelationID)
			require.Equal(t, fmt.Sprint("a", i), frameworktest.Data[lamp](t, got).Room)
			s.Send(lit.Topic(), sent)
		}
		s.Settled(lit.Topic(), "lights.notice")
		feed.Silent()
		s.Publish(lit.New("b", lamp{Room: "b"}), lit.New("c", lamp{Room: "c"}))
		require.Len(t, feed.All("light.noticed", "light.noticed"), 2)
		var rooms int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rooms").Scan(&rooms))
		require.Equal(t, 4, rooms)
		s.Publish(lit.New("d", lamp{Room: "d"}))
		require.Equal(t, "d", feed.Any().Metadata.OrderingKey)
	})
}

func TestAServiceWithoutMigrations(t *testing.T) {
	t.Parallel()
	db := frameworktest.SQLite(t, fstest.MapFS{})
	_, err := db.ExecContext(t.Context(), "SELECT COUNT(*) FROM headrace_inbox")
	require.NoError(t, err)
}
