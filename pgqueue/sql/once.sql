-- Remembers a key.
-- $1: the key.
-- Returns a row if it was not there.
INSERT INTO {schema}.jobs_once (dedupe) VALUES ($1::text) ON CONFLICT DO NOTHING RETURNING 1
