package measure

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"runtime"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"
)

// Machine says what a run was made on, in general terms.
type Machine struct {
	OS, Arch, Go                string
	CPUs                        int
	Postgres, Redis, Durability string
	// LoadBefore and LoadAfter are the system's load averages over a minute; empty
	// where it does not tell. Above the benchmark's own 2 or 3, others worked too.
	LoadBefore, LoadAfter string
}

// Load is the system's load average over a minute.
func Load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}

// Look asks the system and the servers. The URL of the driver pgx is Postgres's.
func Look(ctx context.Context, postgresURL string, client *redis.Client) (Machine, error) {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version(), CPUs: runtime.NumCPU(), LoadBefore: Load()}
	db, err := sql.Open("pgx", postgresURL)
	if err != nil {
		return m, fmt.Errorf("postgres: %w", err)
	}
	defer db.Close()
	var fsync, commit string
	if err := db.QueryRowContext(ctx, `SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')`).Scan(&m.Postgres, &fsync, &commit); err != nil {
		return m, fmt.Errorf("postgres: %w", err)
	}
	m.Postgres, _, _ = strings.Cut(m.Postgres, " ")
	m.Durability = fmt.Sprintf("fsync %s, synchronous_commit %s", fsync, commit)
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return m, fmt.Errorf("redis: %w", err)
	}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			m.Redis = v
		}
	}
	return m, nil
}
