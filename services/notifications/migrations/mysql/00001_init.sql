-- +goose Up
-- What clients and other services choose is kept as bytes where it is a key, since
-- even the binary collations take "a" and "a " for the same.
CREATE TABLE notification_contacts (
    order_id VARBINARY(255) NOT NULL PRIMARY KEY,
    email    TEXT        NOT NULL,
    phone    VARCHAR(64) NOT NULL DEFAULT '',
    language VARCHAR(64) NOT NULL,
    known_at BIGINT      NOT NULL,
    KEY notification_contacts_by_age (known_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE notifications (
    id         VARCHAR(255) NOT NULL PRIMARY KEY,
    event_id   VARBINARY(255) NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    channel    VARCHAR(32)  NOT NULL,
    template   VARCHAR(255) NOT NULL,
    order_id   VARBINARY(255) NOT NULL,
    recipient  TEXT         NOT NULL,
    language   VARCHAR(64)  NOT NULL,
    facts      LONGTEXT     NOT NULL,
    state      VARCHAR(32)  NOT NULL CHECK (state IN ('pending', 'sending', 'sent', 'failed', 'unknown')),
    reason     TEXT         NOT NULL DEFAULT (''),
    reference  TEXT         NOT NULL DEFAULT (''),
    attempts   BIGINT       NOT NULL,
    resends    BIGINT       NOT NULL DEFAULT 0,
    created_at BIGINT       NOT NULL,
    updated_at BIGINT       NOT NULL,
    sent_at    BIGINT,
    UNIQUE KEY notifications_by_event (event_id, channel),
    KEY notifications_by_time (created_at DESC, id DESC),
    KEY notifications_by_order (order_id, created_at DESC, id DESC),
    KEY notifications_by_state (state, created_at DESC, id DESC)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE notification_codes (
    id             VARCHAR(255) NOT NULL PRIMARY KEY,
    channel        VARCHAR(32)  NOT NULL,
    recipient      TEXT         NOT NULL,
    recipient_hash VARCHAR(255) NOT NULL,
    language       VARCHAR(64)  NOT NULL,
    purpose        VARCHAR(255) NOT NULL,
    salt           BLOB         NOT NULL,
    hash           BLOB         NOT NULL,
    sealed         BLOB         NOT NULL,
    attempts       BIGINT       NOT NULL DEFAULT 0,
    created_at     BIGINT       NOT NULL,
    expires_at     BIGINT       NOT NULL,
    consumed_at    BIGINT,
    KEY notification_codes_by_expiry (expires_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE notification_code_limits (
    recipient_hash VARCHAR(255) NOT NULL PRIMARY KEY,
    window_start   BIGINT NOT NULL,
    issued         BIGINT NOT NULL,
    KEY notification_code_limits_by_age (window_start)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE notification_code_limits;
DROP TABLE notification_codes;
DROP TABLE notifications;
DROP TABLE notification_contacts;
