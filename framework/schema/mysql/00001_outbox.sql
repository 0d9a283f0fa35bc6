-- +goose Up
-- The first six columns are those of Watermill's MySQLQueueSchema with
-- LONGBLOB payloads, so that a stock forwarder can drain this table and a stock
-- publisher can fill it. Times are unix microseconds, UTC.
CREATE TABLE IF NOT EXISTS watermill_headrace_outbox (
    `offset`        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    uuid            VARCHAR(36) NOT NULL,
    payload         LONGBLOB DEFAULT NULL,
    metadata        JSON DEFAULT NULL,
    acked           BOOLEAN NOT NULL DEFAULT FALSE,
    created_at      BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    shard           SMALLINT NOT NULL DEFAULT 0,
    ordering_key    VARBINARY(512) DEFAULT NULL,
    state           SMALLINT NOT NULL DEFAULT 0, -- 0 ready, 1 held back, 2 parked
    attempts        INTEGER NOT NULL DEFAULT 0,
    strikes         INTEGER NOT NULL DEFAULT 0, -- attempts that failed while the broker took others
    next_attempt_at BIGINT DEFAULT NULL,
    last_failed_at  BIGINT DEFAULT NULL,
    last_error      TEXT DEFAULT NULL,
    parked_at       BIGINT DEFAULT NULL,
    parked_reason   TEXT DEFAULT NULL,
    sent_at         BIGINT DEFAULT NULL,
    -- Serves ready rows too: they have no next_attempt_at, so a shard's are in
    -- order of offset.
    KEY due (acked, state, shard, next_attempt_at),
    KEY sent (sent_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per outbox table: the pause that all its relays share while the
-- broker refuses everything.
CREATE TABLE IF NOT EXISTS headrace_outbox_control (
    outbox      VARCHAR(255) NOT NULL PRIMARY KEY,
    failures    INTEGER NOT NULL DEFAULT 0,
    not_before  BIGINT DEFAULT NULL,
    owner       VARCHAR(64) DEFAULT NULL,
    lease_until BIGINT DEFAULT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE headrace_outbox_control;
DROP TABLE watermill_headrace_outbox;
