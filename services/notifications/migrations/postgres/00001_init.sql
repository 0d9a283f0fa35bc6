-- +goose Up
CREATE TABLE notification_contacts (
    order_id TEXT COLLATE "C" PRIMARY KEY,
    email    TEXT   NOT NULL,
    phone    TEXT   NOT NULL DEFAULT '',
    language TEXT   NOT NULL,
    known_at BIGINT NOT NULL
);
CREATE INDEX notification_contacts_by_age ON notification_contacts (known_at);

CREATE TABLE notifications (
    id         TEXT COLLATE "C" PRIMARY KEY,
    event_id   TEXT   NOT NULL,
    event_type TEXT   NOT NULL,
    channel    TEXT   NOT NULL,
    template   TEXT   NOT NULL,
    order_id   TEXT   NOT NULL,
    recipient  TEXT   NOT NULL,
    language   TEXT   NOT NULL,
    facts      TEXT   NOT NULL,
    state      TEXT   NOT NULL CHECK (state IN ('pending', 'sending', 'sent', 'failed', 'unknown')),
    reason     TEXT   NOT NULL DEFAULT '',
    reference  TEXT   NOT NULL DEFAULT '',
    attempts   BIGINT NOT NULL,
    resends    BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    sent_at    BIGINT,
    UNIQUE (event_id, channel)
);
CREATE INDEX notifications_by_time ON notifications (created_at DESC, id DESC);
CREATE INDEX notifications_by_order ON notifications (order_id, created_at DESC, id DESC);
CREATE INDEX notifications_by_state ON notifications (state, created_at DESC, id DESC);

CREATE TABLE notification_codes (
    id             TEXT COLLATE "C" PRIMARY KEY,
    channel        TEXT   NOT NULL,
    recipient      TEXT   NOT NULL,
    recipient_hash TEXT   NOT NULL,
    language       TEXT   NOT NULL,
    purpose        TEXT   NOT NULL,
    salt           BYTEA  NOT NULL,
    hash           BYTEA  NOT NULL,
    sealed         BYTEA  NOT NULL,
    attempts       BIGINT NOT NULL DEFAULT 0,
    created_at     BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    consumed_at    BIGINT
);
CREATE INDEX notification_codes_by_expiry ON notification_codes (expires_at);

CREATE TABLE notification_code_limits (
    recipient_hash TEXT PRIMARY KEY,
    window_start   BIGINT NOT NULL,
    issued         BIGINT NOT NULL
);
CREATE INDEX notification_code_limits_by_age ON notification_code_limits (window_start);

-- +goose Down
DROP TABLE notification_code_limits;
DROP TABLE notification_codes;
DROP TABLE notifications;
DROP TABLE notification_contacts;
