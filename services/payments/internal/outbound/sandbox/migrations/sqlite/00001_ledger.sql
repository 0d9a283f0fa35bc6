-- +goose Up
CREATE TABLE sandbox_charges (
    idempotency_key TEXT   PRIMARY KEY,
    reference       TEXT   NOT NULL UNIQUE,
    order_id        TEXT   NOT NULL,
    amount          BIGINT NOT NULL,
    currency        TEXT   NOT NULL,
    state           TEXT   NOT NULL CHECK (state IN ('open', 'captured', 'declined', 'voided', 'refunded')),
    decline_reason  TEXT   NOT NULL DEFAULT '',
    charge_requests BIGINT NOT NULL DEFAULT 0,
    void_requests   BIGINT NOT NULL DEFAULT 0,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);
CREATE INDEX sandbox_charges_by_order ON sandbox_charges (order_id);

CREATE TABLE sandbox_refunds (
    idempotency_key  TEXT   PRIMARY KEY,
    reference        TEXT   NOT NULL UNIQUE,
    charge_reference TEXT   NOT NULL,
    amount           BIGINT NOT NULL,
    currency         TEXT   NOT NULL,
    refund_requests  BIGINT NOT NULL DEFAULT 0,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL
);
CREATE INDEX sandbox_refunds_by_charge ON sandbox_refunds (charge_reference);

-- +goose Down
DROP TABLE sandbox_refunds;
DROP TABLE sandbox_charges;
