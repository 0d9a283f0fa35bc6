-- +goose Up
-- Events that a handler has handled, written in the handler's transaction.
CREATE TABLE headrace_inbox (
    handler      VARCHAR(255) NOT NULL,
    event_id     VARCHAR(255) NOT NULL,
    processed_at BIGINT NOT NULL, -- unix microseconds, UTC
    PRIMARY KEY (handler, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX headrace_inbox_processed_at ON headrace_inbox (processed_at);

-- Claims of handlers that have no transaction of their own: a lease, then a
-- mark that lasts until it expires.
CREATE TABLE headrace_dedup (
    key        VARCHAR(512) PRIMARY KEY,
    token      VARCHAR(64) NOT NULL,
    done       BOOLEAN NOT NULL DEFAULT FALSE,
    expires_at BIGINT NOT NULL -- unix microseconds, UTC: the lease's end, or the mark's
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX headrace_dedup_expires_at ON headrace_dedup (expires_at);

-- +goose Down
DROP TABLE headrace_dedup;
DROP TABLE headrace_inbox;
