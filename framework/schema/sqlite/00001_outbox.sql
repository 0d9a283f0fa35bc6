-- +goose Up
-- The columns of the Postgres table; times are unix microseconds, UTC.
CREATE TABLE watermill_headrace_outbox (
    "offset"        INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid            TEXT NOT NULL,
    payload         BLOB DEFAULT NULL,
    metadata        TEXT DEFAULT NULL,
    acked           INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    shard           INTEGER NOT NULL DEFAULT 0,
    ordering_key    TEXT DEFAULT NULL,
    state           INTEGER NOT NULL DEFAULT 0, -- 0 ready, 1 held back, 2 parked
    attempts        INTEGER NOT NULL DEFAULT 0,
    strikes         INTEGER NOT NULL DEFAULT 0, -- attempts that failed while the broker took others
    next_attempt_at INTEGER DEFAULT NULL,
    last_failed_at  INTEGER DEFAULT NULL,
    last_error      TEXT DEFAULT NULL,
    parked_at       INTEGER DEFAULT NULL,
    parked_reason   TEXT DEFAULT NULL,
    sent_at         INTEGER DEFAULT NULL
);
CREATE INDEX watermill_headrace_outbox_ready ON watermill_headrace_outbox ("offset") WHERE acked = 0 AND state = 0;
CREATE INDEX watermill_headrace_outbox_held ON watermill_headrace_outbox ("offset") WHERE acked = 0 AND state = 1;
CREATE INDEX watermill_headrace_outbox_due ON watermill_headrace_outbox (next_attempt_at) WHERE acked = 0 AND state = 1;
CREATE INDEX watermill_headrace_outbox_parked ON watermill_headrace_outbox ("offset") WHERE acked = 0 AND state = 2;
CREATE INDEX watermill_headrace_outbox_sent ON watermill_headrace_outbox (COALESCE(sent_at, created_at)) WHERE acked = 1;

-- One row per outbox table: the pause that all its relays share while the
-- broker refuses everything, and the lease of the relay where only one may run.
CREATE TABLE headrace_outbox_control (
    outbox      TEXT PRIMARY KEY,
    failures    INTEGER NOT NULL DEFAULT 0,
    not_before  INTEGER DEFAULT NULL,
    owner       TEXT DEFAULT NULL,
    lease_until INTEGER DEFAULT NULL
);

-- +goose Down
DROP TABLE headrace_outbox_control;
DROP TABLE watermill_headrace_outbox;
