-- +goose Up
-- Messages that hold up their key in a handler that parks keys: the lowest seq
-- of a key failed for good, the others wait behind it. Each has a dead letter,
-- or comes again from the broker.
CREATE TABLE IF NOT EXISTS headrace_parked_keys (
    seq          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    handler      VARBINARY(255) NOT NULL, -- the consumer group
    ordering_key VARBINARY(255) NOT NULL,
    event_id     VARBINARY(255) NOT NULL,
    parked_at    BIGINT NOT NULL, -- unix microseconds, UTC
    UNIQUE KEY headrace_parked_keys_event (handler, ordering_key, event_id),
    KEY headrace_parked_keys_order (handler, ordering_key, seq)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE headrace_parked_keys;
