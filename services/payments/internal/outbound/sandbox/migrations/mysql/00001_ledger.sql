-- +goose Up
CREATE TABLE sandbox_charges (
    idempotency_key VARBINARY(255) NOT NULL PRIMARY KEY,
    reference       VARCHAR(255) NOT NULL UNIQUE,
    order_id        VARBINARY(255) NOT NULL,
    amount          BIGINT       NOT NULL,
    currency        VARCHAR(16)  NOT NULL,
    state           VARCHAR(32)  NOT NULL CHECK (state IN ('open', 'captured', 'declined', 'voided', 'refunded')),
    decline_reason  VARCHAR(255) NOT NULL DEFAULT '',
    charge_requests BIGINT       NOT NULL DEFAULT 0,
    void_requests   BIGINT       NOT NULL DEFAULT 0,
    created_at      BIGINT       NOT NULL,
    updated_at      BIGINT       NOT NULL,
    KEY sandbox_charges_by_order (order_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE sandbox_refunds (
    idempotency_key  VARBINARY(255) NOT NULL PRIMARY KEY,
    reference        VARCHAR(255) NOT NULL UNIQUE,
    charge_reference VARCHAR(255) NOT NULL,
    amount           BIGINT       NOT NULL,
    currency         VARCHAR(16)  NOT NULL,
    refund_requests  BIGINT       NOT NULL DEFAULT 0,
    created_at       BIGINT       NOT NULL,
    updated_at       BIGINT       NOT NULL,
    KEY sandbox_refunds_by_charge (charge_reference)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE sandbox_refunds;
DROP TABLE sandbox_charges;
