package migrate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/headrace-go/headrace/framework/internal/sqlitelock"
)

// lockPoll is about how long a replica waits before it tries the lock again.
const lockPoll = 50 * time.Millisecond

func pause(ctx context.Context) error {
	t := time.NewTimer(lockPoll/2 + rand.N(lockPoll))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lockPostgres takes a session's advisory lock. It polls, since a session that
// waits inside pg_advisory_lock holds a snapshot, which CREATE INDEX
// CONCURRENTLY in the other replica's migration would wait for.
func lockPostgres(ctx context.Context, db *sql.DB, table string) (func() error, error) {
	h := fnv.New64a()
	h.Write([]byte("headrace.migrate." + table))
	return lockSession(ctx, db, `SELECT pg_try_advisory_lock($1)`, `SELECT pg_advisory_unlock($1)`, int64(h.Sum64()))
}

// lockMySQL takes a session's named lock. Names are the server's, 64 bytes long
// at most, so the database's is hashed into it.
func lockMySQL(ctx context.Context, db *sql.DB, table string) (func() error, error) {
	const name = `CONCAT('headrace.migrate.', MD5(CONCAT(DATABASE(), '.', ?)))`
	return lockSession(ctx, db, `SELECT GET_LOCK(`+name+`, 0)`, `SELECT RELEASE_LOCK(`+name+`)`, table)
}

// lockSession takes a lock that belongs to a connection.
func lockSession(ctx context.Context, db *sql.DB, lock, unlock string, arg any) (func() error, error) {
	if db.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("the pool has one connection and the lock needs one of its own: raise MaxOpenConns to 2 or more")
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	for {
		var got bool
		if err := conn.QueryRowContext(ctx, lock, arg).Scan(&got); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if got {
			break
		}
		if err := pause(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return func() error {
		// The caller's context may be over; a lock left behind would stay as long
		// as the pool keeps the connection.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := conn.ExecContext(ctx, unlock, arg)
		if err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // ends the session, and the lock with it
			return err
		}
		return conn.Close()
	}, nil
}

// lockSQLite takes a lock file beside the database: the migrations themselves
// stay free to write.
func lockSQLite(ctx context.Context, db *sql.DB, table string) (func() error, error) {
	l := sqlitelock.New(db, table)
	for {
		got, err := l.Try(ctx)
		if err != nil {
			return nil, err
		}
		if got {
			return l.Release, nil
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}
