-- Forgets keys of Once.
-- $1: older than this many microseconds; {limit}: how many.
-- Returns a row for each.
DELETE FROM {schema}.jobs_once WHERE dedupe = ANY(ARRAY(
  SELECT dedupe FROM {schema}.jobs_once WHERE seen_at < now() - $1::bigint * interval '1 microsecond'
  ORDER BY seen_at LIMIT {limit} FOR UPDATE SKIP LOCKED))
RETURNING 1
