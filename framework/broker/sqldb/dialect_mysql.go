package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

var autoIncrement = regexp.MustCompile(`(?m)^\).*\bAUTO_INCREMENT=(\d+)`)

func mysql(ctx context.Context, db *sql.DB) (*dialect, error) {
	d := &dialect{
		name:      sqltx.MySQL,
		quote:     func(name string) string { return doubled(name, "`") },
		maxParams: 65535,
		// No gap locks: claims must not stop publishers.
		isolation: sql.LevelReadCommitted,
		now:       `CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)`,
		created:   `CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS SIGNED)`,
		lockRows:  ` FOR UPDATE SKIP LOCKED`,
		gaps:      true,
		lateJoin:  "{gaps} AS g STRAIGHT_JOIN {t} AS m ON m.`offset` >= g.first_offset AND m.`offset` <= g.last_offset",
		// Locking reads see what is committed, so what it says of claims and gaps may
		// be a moment old: the next claim sees it.
		lockGroup: `SELECT position, {now}, {due}, {gap}, '' FROM {groups} WHERE id = ? FOR UPDATE`,
		createState: []string{
			`CREATE TABLE IF NOT EXISTS headrace_sql_groups (
 id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
 group_key CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
 messages_table VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
 topic VARCHAR(255) NOT NULL,
 consumer_group VARCHAR(255) NOT NULL,
 position BIGINT NOT NULL DEFAULT 0,
 UNIQUE KEY group_key (group_key)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`,
			`CREATE TABLE IF NOT EXISTS headrace_sql_claims (
 id BIGINT NOT NULL PRIMARY KEY,
 group_id BIGINT NOT NULL,
 owner VARCHAR(300) NOT NULL,
 locked_until BIGINT NOT NULL,
 first_offset BIGINT NOT NULL,
 n INT NOT NULL,
 entries MEDIUMBLOB NOT NULL,
 KEY due (group_id, locked_until)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`,
			`CREATE TABLE IF NOT EXISTS headrace_sql_gaps (
 group_id BIGINT NOT NULL,
 first_offset BIGINT NOT NULL,
 last_offset BIGINT NOT NULL,
 seen_at BIGINT NOT NULL,
 holders TEXT,
 PRIMARY KEY (group_id, first_offset)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`,
		},
		createMessages: []string{"CREATE TABLE IF NOT EXISTS {t} (" +
			"`offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,\n" +
			"`uuid` VARCHAR(" + strconv.Itoa(maxUUIDBytes) + ") NOT NULL,\n" +
			"`created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),\n" +
			"`payload` LONGBLOB DEFAULT NULL,\n" +
			"`metadata` JSON DEFAULT NULL\n" +
			") ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"},
		tableExists: `SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?`,
		insert:      "INSERT INTO {t} (uuid, payload, metadata) VALUES ",
		values:      `(?,?,?)`,
		insertGroup: `INSERT IGNORE INTO headrace_sql_groups (group_key, messages_table, topic, consumer_group) VALUES (?,?,?,?)`,
		// A stock group has no row before it has read something: a table without rows
		// stands for one that has read nothing.
		stockFloor: func(t table) string {
			return " AND m.`offset` <= (SELECT COALESCE(MIN(COALESCE(o.offset_acked, 0)), 0) FROM " + doubled(stockOffsets(t), "`") + " AS o)"
		},
	}
	d.lastNumber = func(ctx context.Context, db sqltx.Execer, t table) (int64, error) {
		var name, ddl string
		if err := db.QueryRowContext(ctx, "SHOW CREATE TABLE "+t.quoted).Scan(&name, &ddl); err != nil {
			return -1, err
		}
		m := autoIncrement.FindStringSubmatch(ddl)
		if m == nil {
			return 0, nil
		}
		next, err := strconv.ParseInt(m[1], 10, 64)
		return next - 1, err
	}
	var version string
	var packet int
	if err := db.QueryRowContext(ctx, `SELECT VERSION(), @@global.max_allowed_packet`).Scan(&version, &packet); err != nil {
		return nil, fmt.Errorf("sqldb: ask MySQL for its version: %w", err)
	}
	if !mysqlVersion(version) {
		return nil, fmt.Errorf("sqldb: the server is %s: SKIP LOCKED needs MySQL 8.0 or MariaDB 10.6, or later", version)
	}
	// Half of a packet: a driver that writes parameters into the statement may
	// have to escape every byte.
	d.maxMessage = min(max(packet/2-64<<10, packet/4), 256<<20)
	return d, nil
}

// mysqlVersion tells whether SKIP LOCKED is there.
func mysqlVersion(v string) bool {
	maria := strings.Contains(strings.ToLower(v), "mariadb")
	v = strings.TrimPrefix(v, "5.5.5-") // what old MariaDB puts in front
	parts := strings.SplitN(v, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	if maria {
		return major > 10 || major == 10 && minor >= 6
	}
	return major >= 8
}

// mysqlGapAge is how long a gap without a row, committed or not, stays open. An
// INSERT draws its numbers when it starts and writes the row at once, unless it
// waits for a lock first, and then for so long at most.
func mysqlGapAge(ctx context.Context, db sqltx.Execer) (time.Duration, error) {
	var seconds int64
	err := db.QueryRowContext(ctx, `SELECT @@global.innodb_lock_wait_timeout`).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("ask for innodb_lock_wait_timeout: %w", err)
	}
	return time.Duration(min(seconds, 3600))*time.Second + 10*time.Second, nil
}
