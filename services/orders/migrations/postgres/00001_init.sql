-- +goose Up
CREATE TABLE orders (
    id                TEXT COLLATE "C" PRIMARY KEY,
    state             TEXT   NOT NULL CHECK (state IN ('placed', 'confirmed', 'cancelled')),
    customer_id       TEXT   NOT NULL,
    customer_email    TEXT   NOT NULL,
    customer_phone    TEXT   NOT NULL DEFAULT '',
    customer_language TEXT   NOT NULL,
    total_amount      BIGINT NOT NULL CHECK (total_amount > 0),
    currency          TEXT   NOT NULL,
    payment_id        TEXT   NOT NULL DEFAULT '',
    refund_id         TEXT   NOT NULL DEFAULT '',
    cancelled_by      TEXT   NOT NULL DEFAULT '',
    cancel_reason     TEXT   NOT NULL DEFAULT '',
    placed_at         BIGINT NOT NULL,
    confirmed_at      BIGINT,
    cancelled_at      BIGINT,
    refunded_at       BIGINT,
    updated_at        BIGINT NOT NULL,
    version           BIGINT NOT NULL
);
CREATE INDEX orders_by_time ON orders (placed_at DESC, id DESC);
CREATE INDEX orders_by_customer ON orders (customer_id, placed_at DESC, id DESC);
CREATE INDEX orders_by_state ON orders (state, placed_at DESC, id DESC);

CREATE TABLE order_lines (
    order_id   TEXT COLLATE "C" NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    position   INTEGER NOT NULL,
    sku        TEXT    NOT NULL,
    quantity   BIGINT  NOT NULL CHECK (quantity > 0),
    unit_price BIGINT  NOT NULL CHECK (unit_price >= 0),
    PRIMARY KEY (order_id, position)
);

CREATE TABLE order_idempotency_keys (
    idempotency_key TEXT   PRIMARY KEY,
    fingerprint     TEXT   NOT NULL,
    order_id        TEXT   NOT NULL,
    created_at      BIGINT NOT NULL,
    expires_at      BIGINT NOT NULL
);
CREATE INDEX order_idempotency_keys_by_expiry ON order_idempotency_keys (expires_at);

-- +goose Down
DROP TABLE order_idempotency_keys;
DROP TABLE order_lines;
DROP TABLE orders;
