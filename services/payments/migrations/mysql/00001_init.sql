-- +goose Up
CREATE TABLE payments (
    id                 VARCHAR(255) NOT NULL PRIMARY KEY,
    -- Bytes, since even the binary collations take "a" and "a " for the same.
    order_id           VARBINARY(255) NOT NULL UNIQUE,
    state              VARCHAR(32)  NOT NULL CHECK (state IN ('pending', 'blocked', 'captured', 'failed', 'refunding', 'refunded')),
    amount             BIGINT       NOT NULL CHECK (amount >= 0),
    currency           VARCHAR(3)   NOT NULL,
    reference          TEXT         NOT NULL DEFAULT (''),
    failure_reason     TEXT         NOT NULL DEFAULT (''),
    refund_id          VARCHAR(255) NOT NULL DEFAULT '',
    refund_reference   TEXT         NOT NULL DEFAULT (''),
    created_at         BIGINT       NOT NULL,
    order_cancelled_at BIGINT,
    captured_at        BIGINT,
    failed_at          BIGINT,
    refunded_at        BIGINT,
    updated_at         BIGINT       NOT NULL,
    version            BIGINT       NOT NULL,
    -- What an operator looks for: payments that are neither done nor moving.
    KEY payments_by_state (state, updated_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE payments;
