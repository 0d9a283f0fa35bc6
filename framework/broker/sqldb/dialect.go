package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// dialect is what differs between the databases. Queries are written with "?"
// and bound once.
type dialect struct {
	name  sqltx.Dialect
	quote func(name string) string
	// numbered: placeholders are $1, $2, …
	numbered bool
	// maxParams bounds the parameters of one statement.
	maxParams int
	// isolation of claims.
	isolation sql.IsolationLevel
	// now is the database's clock, in microseconds since 1970.
	now string
	// created is the column created_at in microseconds since 1970.
	created string
	// lockGroup reads a group's position, the clock, whether a claim is due and
	// whether there are gaps, and keeps other claims of the group out until the
	// transaction ends. It takes the group's id; its last column is nothing.
	lockGroup string
	// lockRows ends a SELECT that locks its rows and skips those of others.
	lockRows string
	// updateAndDelete: one statement can do both.
	combined bool
	// gaps: numbers may become visible out of their order.
	gaps bool
	// lateJoin reads, for each gap g, the rows m of {t} in it from the lowest.
	lateJoin string
	// oneWriter: the database has one writer at a time, and those that wait poll
	// for its lock.
	oneWriter bool
	// maxMessage is the largest message in bytes.
	maxMessage int

	createState []string
	// createMessages creates a topic's table {t}, named {name}.
	createMessages []string
	// tableExists takes a table's name.
	tableExists string
	// insert is the head of an insert into {t}, values what follows for each row.
	insert, values string
	// insertGroup ignores a row that is there already.
	insertGroup string
	// lastNumber reads the highest number that topic table {name} handed out.
	lastNumber func(ctx context.Context, db sqltx.Execer, t table) (int64, error)
	// stockFloor keeps rows that a stock group has yet to read; see dialects.
	stockFloor func(t table) string
}

// table is a topic's table.
type table struct {
	topic  string
	full   string // with the prefix
	name   string // unquoted
	quoted string
}

func (b *Broker) table(topic string) table {
	full := b.cfg.Prefix + topic
	name := MessagesTable(b.d.name, full)
	return table{topic: topic, full: full, name: name, quoted: b.d.quote(name)}
}

// bind writes the placeholders of q as the database wants them. No query has a
// "?" elsewhere.
func (d *dialect) bind(q string) string {
	if !d.numbered || strings.IndexByte(q, '?') < 0 {
		return q
	}
	var b strings.Builder
	b.Grow(len(q) + 16)
	n := 0
	for i := range len(q) {
		if q[i] == '?' {
			n++
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(n))
			continue
		}
		b.WriteByte(q[i])
	}
	return b.String()
}

// in returns "(?,?,…)" for n values.
func in(n int) string { return "(" + strings.TrimSuffix(strings.Repeat("?,", n), ",") + ")" }

func anys[T any](vals []T) []any {
	out := make([]any, len(vals))
	for i, v := range vals {
		out[i] = v
	}
	return out
}

func doubled(name, q string) string { return q + strings.ReplaceAll(name, q, q+q) + q }

// fill replaces {t}, {name}, {offset} and the state tables' names.
func (d *dialect) fill(q string, t table) string {
	return strings.NewReplacer("{t}", t.quoted, "{offset}", d.quote("offset"), "{now}", d.now, "{created}", d.created,
		"{due}", `EXISTS (SELECT 1 FROM headrace_sql_claims AS d WHERE d.group_id = headrace_sql_groups.id AND d.locked_until <= `+d.now+`)`,
		"{gap}", `EXISTS (SELECT 1 FROM headrace_sql_gaps AS p WHERE p.group_id = headrace_sql_groups.id)`,
		"{groups}", groupsTable, "{claims}", claimsTable, "{gaps}", gapsTable).Replace(q)
}

// rejected tells whether the database refused the data itself, so that it will
// do so again.
func rejected(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return strings.HasPrefix(state.SQLState(), "22")
	}
	switch mysqlNumber(err) {
	case 1153, // packet too large
		1366, // incorrect string value
		1406, // data too long
		3140, // invalid JSON
		4025: // a CHECK failed (MariaDB's JSON)
		return true
	}
	return false
}

// noTable tells that a table does not exist.
func noTable(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "42P01"
	}
	if mysqlNumber(err) == 1146 {
		return true
	}
	// SQLite has no code of its own for it.
	var coded interface{ Code() int }
	return errors.As(err, &coded) && coded.Code() == 1 && strings.Contains(err.Error(), "no such table")
}

// mysqlNumber is the number of a *mysql.MySQLError, which the driver has as a
// field only; 0 for any other error.
func mysqlNumber(err error) int {
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() == reflect.Struct && v.Type().Name() == "MySQLError" {
			if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
				return int(f.Uint())
			}
		}
	}
	return 0
}

// txOptions of a claim. A claim is retried here only while it loses to others;
// everything else is the caller's to repeat.
func (d *dialect) txOptions() sqltx.Options {
	return sqltx.Options{Dialect: d.name, Isolation: d.isolation, MaxElapsed: 2 * time.Second, BackoffBase: time.Millisecond, BackoffCap: 50 * time.Millisecond}
}

func newDialect(ctx context.Context, db *sql.DB, name sqltx.Dialect) (*dialect, error) {
	switch name {
	case sqltx.Postgres:
		return postgres(), nil
	case sqltx.MySQL:
		return mysql(ctx, db)
	case sqltx.SQLite:
		return sqlite(), nil
	}
	return nil, fmt.Errorf("sqldb: Dialect is %q: use %q, %q or %q", string(name), sqltx.Postgres, sqltx.MySQL, sqltx.SQLite)
}
