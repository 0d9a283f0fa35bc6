-- +goose Up
-- Events that a handler has handled, written in the handler's transaction.
CREATE TABLE headrace_inbox (
    handler      TEXT NOT NULL,
    event_id     TEXT NOT NULL,
    processed_at INTEGER NOT NULL, -- unix microseconds, UTC
    PRIMARY KEY (handler, event_id)
) WITHOUT ROWID;
CREATE INDEX headrace_inbox_processed_at ON headrace_inbox (processed_at);

-- Claims of handlers that have no transaction of their own: a lease, then a
-- mark that lasts until it expires.
CREATE TABLE headrace_dedup (
    key        TEXT PRIMARY KEY,
    token      TEXT NOT NULL,
    done       INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL -- unix microseconds, UTC: the lease's end, or the mark's
) WITHOUT ROWID;
CREATE INDEX headrace_dedup_expires_at ON headrace_dedup (expires_at);

-- +goose Down
DROP TABLE headrace_dedup;
DROP TABLE headrace_inbox;
