-- Wakes whoever listens, when the transaction commits.
-- $1: the channel, $2: empty, or the name of a probe.
SELECT pg_notify($1::text, $2::text)
