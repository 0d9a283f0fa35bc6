package schema_test

import (
	"database/sql"
	"io"
	"io/fs"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

// The dialects have the same migrations, tables and columns.
func TestDialectsAgree(t *testing.T) {
	t.Parallel()
	names := func(d sqltx.Dialect) []string {
		m, err := schema.Migrations(d)
		require.NoError(t, err)
		files, err := fs.Glob(m, "*.sql")
		require.NoError(t, err)
		return files
	}
	require.Equal(t, names(sqltx.Postgres), names(sqltx.SQLite))
	require.Equal(t, names(sqltx.Postgres), names(sqltx.MySQL))
	_, err := schema.Migrations("oracle")
	require.ErrorContains(t, err, "unknown dialect")

	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	dbs := map[sqltx.Dialect]*sql.DB{sqltx.Postgres: testenv.Postgres(t), sqltx.MySQL: testenv.MySQL(t), sqltx.SQLite: testenv.SQLite(t)}
	columns := map[sqltx.Dialect]map[string][]string{}
	for d, db := range dbs {
		require.ErrorContains(t, schema.Check(t.Context(), db, d), "[1 2 3")
		require.NoError(t, schema.Ensure(t.Context(), db, d, quiet))
		columns[d] = map[string][]string{}
		for _, table := range []string{schema.OutboxTable, schema.ControlTable, schema.InboxTable, schema.DedupTable, schema.ParkedTable} {
			rows, err := db.Query(`SELECT * FROM ` + table)
			require.NoError(t, err)
			columns[d][table], err = rows.Columns()
			require.NoError(t, err)
			require.NoError(t, rows.Close())
		}
	}
	require.Equal(t, columns[sqltx.Postgres], columns[sqltx.SQLite])
	require.Equal(t, columns[sqltx.Postgres], columns[sqltx.MySQL])
}
