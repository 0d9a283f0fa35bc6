// Package sqlitelock gives the processes that share an SQLite file a lock that
// ends with its holder: the operating system's lock on a small file beside the
// database. The database itself stays free to write while it is held.
package sqlitelock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// Lock is a lock of one name on one database. It is safe for concurrent use.
type Lock struct {
	db   *sql.DB
	name string

	mu   sync.Mutex
	pool *sql.DB
	conn *sql.Conn
	held bool
	free func()
}

// New makes a lock, not held. The file is "<database>-<name>.lock". A database
// in memory is locked within the process.
func New(db *sql.DB, name string) *Lock { return &Lock{db: db, name: name} }

// inMemory holds the locks of databases that have no file, by *sql.DB and name.
var inMemory sync.Map

type memoryKey struct {
	db   *sql.DB
	name string
}

// Try takes the lock without waiting. It returns true when this Lock holds it,
// also when it did before.
func (l *Lock) Try(ctx context.Context) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return true, nil
	}
	var file string
	if err := l.db.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
		return false, fmt.Errorf("find the database's file: %w", err)
	}
	if file == "" {
		key := memoryKey{l.db, l.name}
		if _, taken := inMemory.LoadOrStore(key, l); taken {
			return false, nil
		}
		l.held, l.free = true, func() { inMemory.Delete(key) }
		return true, nil
	}
	if l.conn == nil {
		// A connection outside the caller's pool, which may have only one.
		pool := sql.OpenDB(connector{driver: l.db.Driver()})
		conn, err := pool.Conn(ctx)
		if err != nil {
			return false, errors.Join(err, pool.Close())
		}
		l.pool, l.conn = pool, conn
	}
	err := begin(ctx, l.conn, file+"-"+l.name+".lock")
	if err == nil {
		l.held = true
		return true, nil
	}
	if sqltx.IsTransient(err) {
		return false, nil
	}
	return false, errors.Join(fmt.Errorf("lock %s-%s.lock: %w", file, l.name, err), l.close())
}

func begin(ctx context.Context, conn *sql.Conn, file string) error {
	// ATTACH takes the name as a parameter, so no path needs escaping.
	if _, err := conn.ExecContext(ctx, `ATTACH DATABASE $1 AS headrace_lock`, file); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, `BEGIN EXCLUSIVE`)
	if err == nil {
		return nil
	}
	if _, e := conn.ExecContext(context.WithoutCancel(ctx), `DETACH DATABASE headrace_lock`); e != nil {
		return errors.Join(e, err)
	}
	return err
}

// Release gives the lock back. One that is not held is no error.
func (l *Lock) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.close()
}

func (l *Lock) close() error {
	l.held = false
	if l.free != nil {
		l.free()
		l.free = nil
	}
	if l.conn == nil {
		return nil
	}
	// Closing the connection ends its transaction, and the lock with it.
	err := l.conn.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) {
		err = nil
	}
	err = errors.Join(err, l.conn.Close(), l.pool.Close())
	l.conn, l.pool = nil, nil
	return ignoreClosed(err)
}

func ignoreClosed(err error) error {
	if err == nil || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}

// connector opens connections to a private database in memory.
type connector struct{ driver driver.Driver }

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(":memory:") }
func (c connector) Driver() driver.Driver                        { return c.driver }
