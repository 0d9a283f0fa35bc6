-- +goose Up
-- What a handler produced, kept with the mark of its message where it asks for
-- that; at most 256 KiB.
ALTER TABLE headrace_dedup ADD COLUMN result MEDIUMBLOB DEFAULT NULL;

-- +goose Down
ALTER TABLE headrace_dedup DROP COLUMN result;
