-- +goose Up
CREATE TABLE payments (
    id                 TEXT PRIMARY KEY,
    order_id           TEXT   NOT NULL UNIQUE,
    state              TEXT   NOT NULL CHECK (state IN ('pending', 'blocked', 'captured', 'failed', 'refunding', 'refunded')),
    amount             BIGINT NOT NULL CHECK (amount >= 0),
    currency           TEXT   NOT NULL,
    reference          TEXT   NOT NULL DEFAULT '',
    failure_reason     TEXT   NOT NULL DEFAULT '',
    refund_id          TEXT   NOT NULL DEFAULT '',
    refund_reference   TEXT   NOT NULL DEFAULT '',
    created_at         BIGINT NOT NULL,
    order_cancelled_at BIGINT,
    captured_at        BIGINT,
    failed_at          BIGINT,
    refunded_at        BIGINT,
    updated_at         BIGINT NOT NULL,
    version            BIGINT NOT NULL
);
-- What an operator looks for: payments that are neither done nor moving.
CREATE INDEX payments_unsettled ON payments (state, updated_at) WHERE state IN ('pending', 'refunding');

-- +goose Down
DROP TABLE payments;
