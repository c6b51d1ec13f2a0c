-- Claims jobs that are due. FOR UPDATE in the CTE makes it run once, so that no more
-- rows are claimed than it has chosen.
-- {limit}: how many, in the text, so that a generic plan knows it, too.
-- {floor}: nothing, or floor.sql.
-- $1: the lease in microseconds.
-- Returns id, fence, attempts, kind, key, payload, version, dedupe, last_error, lag and age in microseconds.
WITH due AS MATERIALIZED (
  SELECT id FROM {schema}.jobs
  WHERE run_at <= now() {floor}
  ORDER BY run_at LIMIT {limit} FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.jobs
SET fence = fence + 1, attempts = attempts + 1, due_at = run_at, run_at = now() + $1::bigint * interval '1 microsecond'
WHERE id = ANY(ARRAY(SELECT id FROM due))
RETURNING id, fence, attempts, kind, key, payload, version, dedupe, last_error,
  (extract(epoch FROM now() - due_at) * 1000000)::bigint, (extract(epoch FROM now() - enqueued_at) * 1000000)::bigint
