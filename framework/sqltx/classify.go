package sqltx

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"syscall"
)

// IsTransient tells whether err says that the same work may succeed when it is
// done again: a serialization failure, a deadlock, a lock timeout, a busy
// database, a lost or refused connection. It goes by the codes that drivers
// carry (SQLSTATE, MySQL's numbers, SQLite's result codes) and by the types of
// network errors, never by a server's text. The end of a context is not transient.
func IsTransient(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return isConflict(err) || isConnection(err)
}

// isConflict: the database says that it rolled back or refused the work because
// of other work.
func isConflict(err error) bool {
	if state, ok := sqlState(err); ok {
		switch state {
		case "40001", // serialization_failure
			"40P01", // deadlock_detected
			"55P03": // lock_not_available
			return true
		}
	}
	if n, ok := mysqlNumber(err); ok {
		switch n {
		case 1205, // lock wait timeout
			1213, // deadlock
			1020, // record has changed since last read (MariaDB snapshot isolation)
			3572: // NOWAIT lock not available
			return true
		}
	}
	if code, ok := sqliteCode(err); ok {
		switch code & 0xff {
		case 5, // SQLITE_BUSY and its extended codes
			6: // SQLITE_LOCKED
			return true
		}
	}
	return false
}

// isConnection: the connection was lost, or the server takes none now.
func isConnection(err error) bool {
	if state, ok := sqlState(err); ok {
		switch state {
		case "57P01", // admin_shutdown
			"57P02", // crash_shutdown
			"57P03", // cannot_connect_now
			"57P05", // idle_session_timeout
			"53300", // too_many_connections
			"25006": // read_only_sql_transaction: a primary that has just been demoted
			return true
		}
		return strings.HasPrefix(state, "08")
	}
	if n, ok := mysqlNumber(err); ok {
		switch n {
		case 1040, // too many connections
			1053, // server shutdown in progress
			1290, // --read-only: a primary that has just been demoted
			1836, // read only mode
			1927: // connection was killed (MariaDB)
			return true
		}
		return false
	}
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || isInvalidConn(err) {
		return true
	}
	var netErr net.Error
	if errors.As(err, &netErr) {
		return true
	}
	_, said := safeToRetry(err)
	return said
}

// isInvalidConn: the MySQL driver lost the connection in the middle of something.
// It says so with a sentinel that has neither type nor code, so it is known by
// the sentinel's own constant text, which no server has written.
func isInvalidConn(err error) bool {
	return walk(err, func(e error) bool {
		return reflect.TypeOf(e) == plainError && e.Error() == "invalid connection"
	})
}

var plainError = reflect.TypeOf(errors.New(""))

// notSent: the driver found the connection dead before it sent anything.
func notSent(err error) bool {
	safe, _ := safeToRetry(err)
	return safe
}

// safeToRetry asks the errors of a connection that pgx has lost, which have this
// method and often no network error within, whether nothing had been sent.
func safeToRetry(err error) (safe, said bool) {
	var e interface{ SafeToRetry() bool }
	if errors.As(err, &e) {
		return e.SafeToRetry(), true
	}
	return false, false
}

// IsUniqueViolation tells whether err says that a row with the same unique key
// exists.
func IsUniqueViolation(err error) bool {
	if state, ok := sqlState(err); ok && state == "23505" {
		return true
	}
	if n, ok := mysqlNumber(err); ok && (n == 1062 || n == 1586) {
		return true
	}
	if code, ok := sqliteCode(err); ok {
		switch code {
		case 2067, // SQLITE_CONSTRAINT_UNIQUE
			1555, // SQLITE_CONSTRAINT_PRIMARYKEY
			2579: // SQLITE_CONSTRAINT_ROWID
			return true
		}
	}
	return false
}

// IsPermission tells whether err says that the database role lacks a right.
func IsPermission(err error) bool {
	if state, ok := sqlState(err); ok && state == "42501" {
		return true
	}
	if n, ok := mysqlNumber(err); ok {
		switch n {
		case 1044, 1045, 1142, 1143, 1227, 1370:
			return true
		}
	}
	if code, ok := sqliteCode(err); ok {
		switch code & 0xff {
		case 3, // SQLITE_PERM
			8,  // SQLITE_READONLY
			23: // SQLITE_AUTH
			return true
		}
	}
	return false
}

// sqlState finds a SQLSTATE in err's chain: pgx and lib/pq have the method.
func sqlState(err error) (string, bool) {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState(), true
	}
	return "", false
}

// sqliteCode finds an SQLite result code in err's chain. Other libraries have a
// Code method too, so the error's package must be an SQLite one.
func sqliteCode(err error) (int, bool) {
	code, found := 0, false
	walk(err, func(e error) bool {
		coded, ok := e.(interface{ Code() int })
		if ok && strings.Contains(pkgPath(e), "sqlite") {
			code, found = coded.Code(), true
		}
		return found
	})
	return code, found
}

// mysqlNumber finds the number of a *mysql.MySQLError in err's chain. The driver
// has it as a field only.
func mysqlNumber(err error) (int, bool) {
	number, found := 0, false
	walk(err, func(e error) bool {
		v := reflect.Indirect(reflect.ValueOf(e))
		if v.Kind() != reflect.Struct || !strings.HasSuffix(v.Type().Name(), "MySQLError") {
			return false
		}
		if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
			number, found = int(f.Uint()), true
		}
		return found
	})
	return number, found
}

func pkgPath(e error) string {
	t := reflect.TypeOf(e)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath()
}

// walk visits err's tree, depth first, until visit returns true.
func walk(err error, visit func(error) bool) bool {
	for err != nil {
		if visit(err) {
			return true
		}
		switch x := err.(type) { //nolint:errorlint // it unwraps by itself
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			for _, e := range x.Unwrap() {
				if walk(e, visit) {
					return true
				}
			}
			return false
		default:
			return false
		}
	}
	return false
}
