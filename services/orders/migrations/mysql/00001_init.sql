-- +goose Up
CREATE TABLE orders (
    id                VARCHAR(255) NOT NULL PRIMARY KEY,
    state             VARCHAR(32)  NOT NULL CHECK (state IN ('placed', 'confirmed', 'cancelled')),
    -- Bytes, since even the binary collations take "a" and "a " for the same.
    customer_id       VARBINARY(255) NOT NULL,
    customer_email    TEXT         NOT NULL,
    customer_phone    VARCHAR(64)  NOT NULL DEFAULT '',
    customer_language VARCHAR(64)  NOT NULL,
    total_amount      BIGINT       NOT NULL CHECK (total_amount > 0),
    currency          VARCHAR(3)   NOT NULL,
    payment_id        VARCHAR(255) NOT NULL DEFAULT '',
    refund_id         VARCHAR(255) NOT NULL DEFAULT '',
    cancelled_by      VARCHAR(64)  NOT NULL DEFAULT '',
    cancel_reason     TEXT         NOT NULL DEFAULT (''),
    placed_at         BIGINT       NOT NULL,
    confirmed_at      BIGINT,
    cancelled_at      BIGINT,
    refunded_at       BIGINT,
    updated_at        BIGINT       NOT NULL,
    version           BIGINT       NOT NULL,
    KEY orders_by_time (placed_at DESC, id DESC),
    KEY orders_by_customer (customer_id, placed_at DESC, id DESC),
    KEY orders_by_state (state, placed_at DESC, id DESC)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE order_lines (
    order_id   VARCHAR(255) NOT NULL,
    position   INTEGER      NOT NULL,
    sku        VARCHAR(255) NOT NULL,
    quantity   BIGINT       NOT NULL CHECK (quantity > 0),
    unit_price BIGINT       NOT NULL CHECK (unit_price >= 0),
    PRIMARY KEY (order_id, position),
    FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE order_idempotency_keys (
    idempotency_key VARBINARY(255) NOT NULL PRIMARY KEY,
    fingerprint     VARCHAR(255) NOT NULL,
    order_id        VARCHAR(255) NOT NULL,
    created_at      BIGINT       NOT NULL,
    expires_at      BIGINT       NOT NULL,
    KEY order_idempotency_keys_by_expiry (expires_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE order_idempotency_keys;
DROP TABLE order_lines;
DROP TABLE orders;
