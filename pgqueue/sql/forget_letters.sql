-- Removes dead letters that were replayed.
-- $1: longer ago than this many microseconds; {limit}: how many.
-- Returns a row for each.
DELETE FROM {schema}.jobs_dead WHERE id = ANY(ARRAY(
  SELECT id FROM {schema}.jobs_dead WHERE replayed_at < now() - $1::bigint * interval '1 microsecond'
  ORDER BY id LIMIT {limit} FOR UPDATE SKIP LOCKED))
RETURNING 1
