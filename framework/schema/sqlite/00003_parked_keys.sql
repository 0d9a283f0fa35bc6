-- +goose Up
-- Messages that hold up their key in a handler that parks keys: the lowest seq
-- of a key failed for good, the others wait behind it. Each has a dead letter,
-- or comes again from the broker.
CREATE TABLE headrace_parked_keys (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice
    handler      TEXT NOT NULL, -- the consumer group
    ordering_key TEXT NOT NULL,
    event_id     TEXT NOT NULL,
    parked_at    INTEGER NOT NULL, -- unix microseconds, UTC
    UNIQUE (handler, ordering_key, event_id)
);
CREATE INDEX headrace_parked_keys_order ON headrace_parked_keys (handler, ordering_key, seq);

-- +goose Down
DROP TABLE headrace_parked_keys;
