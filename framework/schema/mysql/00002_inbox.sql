-- +goose Up
-- Events that a handler has handled, written in the handler's transaction. Keys
-- are bytes: no collation makes two of them one.
CREATE TABLE IF NOT EXISTS headrace_inbox (
    handler      VARBINARY(255) NOT NULL,
    event_id     VARBINARY(255) NOT NULL,
    processed_at BIGINT NOT NULL, -- unix microseconds, UTC
    PRIMARY KEY (handler, event_id),
    KEY headrace_inbox_processed_at (processed_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Claims of handlers that have no transaction of their own: a lease, then a
-- mark that lasts until it expires.
CREATE TABLE IF NOT EXISTS headrace_dedup (
    `key`      VARBINARY(512) NOT NULL PRIMARY KEY,
    token      VARBINARY(64) NOT NULL,
    done       BOOLEAN NOT NULL DEFAULT FALSE,
    expires_at BIGINT NOT NULL, -- unix microseconds, UTC: the lease's end, or the mark's
    KEY headrace_dedup_expires_at (expires_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE headrace_dedup;
DROP TABLE headrace_inbox;
