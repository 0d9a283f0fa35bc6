// Package outbound holds what the service reaches out to: its tables, the
// templates, and the channels.
package outbound

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

// Store keeps contacts, notifications and codes in SQL tables. Times are whole
// microseconds. It is safe for concurrent use.
type Store struct {
	db      *sql.DB
	dialect sqltx.Dialect
}

// NewStore returns a store over db.
func NewStore(db *sql.DB, dialect sqltx.Dialect) *Store { return &Store{db: db, dialect: dialect} }

var (
	_ app.Contacts      = (*Store)(nil)
	_ app.Notifications = (*Store)(nil)
	_ app.Codes         = (*Store)(nil)
	_ app.Purger        = (*Store)(nil)
)

// q returns the statement as the dialect writes it.
func (s *Store) q(query string) string { return s.dialect.Rebind(query) }

// locking ends a SELECT that holds its row until the transaction ends. SQLite
// has one writer at a time and no such clause.
func (s *Store) locking() string {
	if s.dialect == sqltx.SQLite {
		return ""
	}
	return " FOR UPDATE"
}

// skipLocked ends a SELECT of rows to delete, so that two replicas that clean
// up at the same time never wait for each other.
func (s *Store) skipLocked() string {
	if s.dialect == sqltx.SQLite {
		return ""
	}
	return " FOR UPDATE SKIP LOCKED"
}

// unlessThere ends an INSERT that changes, and counts, no row where the unique
// columns have one.
func (s *Store) unlessThere(columns string) string {
	if s.dialect == sqltx.MySQL {
		return " ON DUPLICATE KEY UPDATE updated_at = updated_at"
	}
	return " ON CONFLICT (" + columns + ") DO NOTHING"
}

func micros(t time.Time) int64 { return t.UnixMicro() }

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }

func nullMicros(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}

func fromNullMicros(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return fromMicros(us.Int64)
}

// found turns a missing row into app.ErrNotFound.
func found(what, id string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s %q: %w", what, id, app.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("read %s %q: %w", what, id, err)
	}
	return nil
}

// changedOne fails when a statement that should change one row changed none.
func changedOne(what, id string, res sql.Result) error {
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("write %s %q: %w", what, id, err)
	}
	if n == 0 {
		return fmt.Errorf("%s %q: %w", what, id, app.ErrNotFound)
	}
	return nil
}
