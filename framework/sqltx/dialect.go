package sqltx

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Dialect names the kind of SQL that a database speaks.
type Dialect string

const (
	// Postgres is PostgreSQL 12 or later.
	Postgres Dialect = "postgres"
	// SQLite is SQLite 3.35 or later, in WAL mode.
	SQLite Dialect = "sqlite"
	// MySQL is MySQL 8.0.19 or MariaDB 10.6, or later.
	MySQL Dialect = "mysql"
)

// Validate returns nil when d is one of the dialects above, else an error that
// names d and those.
func (d Dialect) Validate() error {
	switch d {
	case Postgres, MySQL, SQLite:
		return nil
	default:
		return fmt.Errorf("sqltx: unknown dialect %q: use %q, %q or %q", string(d), Postgres, MySQL, SQLite)
	}
}

// Rebind returns q with its $1, $2, ... placeholders as d writes them. Postgres
// and SQLite take them as they are. For another dialect each becomes a "?",
// which is right only while every placeholder is used once and in order.
// Placeholders inside string literals, quoted names and comments are left alone.
func (d Dialect) Rebind(q string) string {
	if d == Postgres || d == SQLite {
		return q
	}
	return questionMarks(q)
}

func questionMarks(q string) string {
	var b strings.Builder
	b.Grow(len(q))
	for i := 0; i < len(q); {
		switch c := q[i]; {
		case c == '\'' || c == '"' || c == '`':
			end := strings.IndexByte(q[i+1:], c)
			if end < 0 {
				b.WriteString(q[i:])
				return b.String()
			}
			b.WriteString(q[i : i+end+2])
			i += end + 2
		case strings.HasPrefix(q[i:], "--"):
			end := strings.IndexByte(q[i:], '\n')
			if end < 0 {
				b.WriteString(q[i:])
				return b.String()
			}
			b.WriteString(q[i : i+end])
			i += end
		case c == '$' && i+1 < len(q) && isDigit(q[i+1]):
			b.WriteByte('?')
			for i++; i < len(q) && isDigit(q[i]); i++ {
			}
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String()
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// Execer is what *sql.DB, *sql.Tx and *sql.Conn have in common.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
