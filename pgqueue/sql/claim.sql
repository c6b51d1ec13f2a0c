-- Claims jobs that are due. FOR UPDATE in the CTE makes it run once, so that no more
-- rows are claimed than it has chosen.
-- {limit}: how many, in the text, so that a generic plan knows it, too.
-- {floor}: nothing, or floor.sql.
-- $1: the lease in microseconds.
-- Returns id, fence, attempts, since when it was due, since when it is there, and now, all as binary (the server's arithmetic and
-- spelling of times cost as much as a tenth of the claim); kind, key, payload, version, dedupe, last_error.
WITH due AS MATERIALIZED (
  SELECT id FROM {schema}.jobs
  WHERE run_at <= now() {floor}
  ORDER BY run_at LIMIT {limit} FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.jobs
SET fence = fence + 1, attempts = attempts + 1, due_at = run_at, run_at = now() + $1::bigint * interval '1 microsecond'
WHERE id = ANY(ARRAY(SELECT id FROM due))
RETURNING id, fence, attempts, due_at, enqueued_at, now(), kind, key, payload, version, dedupe, last_error
