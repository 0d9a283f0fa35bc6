package testenv

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql" // the driver that MySQL opens
	"github.com/google/uuid"
)

// EnvMySQL points the tests at a MySQL or MariaDB server, as the driver's DSN
// without a database.
const EnvMySQL = "HEADRACE_TEST_MYSQL"

const defaultMySQL = "root@tcp(127.0.0.1:3306)/"

// MySQLDSN creates a database of the test's own and returns its DSN. The
// database is dropped when the test ends.
func MySQLDSN(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv(EnvMySQL)
	if dsn == "" {
		dsn = defaultMySQL
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("%s: %v", EnvMySQL, err)
	}
	cfg.InterpolateParams = true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatalf("%s: %v", EnvMySQL, err)
	}
	if err := admin.PingContext(ctx); err != nil {
		admin.Close()
		missing(t, "MySQL", err)
	}
	name := "headrace_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		admin.Close()
		t.Fatalf("create the test's database: %v", err)
	}
	t.Cleanup(func() {
		defer admin.Close()
		if _, err := admin.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+name); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	cfg.DBName = name
	return cfg.FormatDSN()
}

// MySQL opens MySQLDSN. The pool is closed when the test ends.
func MySQL(t testing.TB) *sql.DB {
	t.Helper()
	return Open(t, "mysql", MySQLDSN(t))
}

// MySQLAddr is the host and port of a DSN of MySQLDSN.
func MySQLAddr(t testing.TB, dsn string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("parse the DSN: %v", err)
	}
	return cfg.Addr
}

// MySQLWithAddr is the DSN with another host and port.
func MySQLWithAddr(t testing.TB, dsn, addr string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("parse the DSN: %v", err)
	}
	cfg.Addr = addr
	return cfg.FormatDSN()
}
