-- Gives jobs back. The fence grows, so that the claim is good for nothing from then on.
-- $1: ids, $2: fences ({fences}: fences.sql), $3: a JSON array of objects: id, fence, delay in microseconds, error, uncounted.
-- Returns id, fence of those that were given back, as they were.
WITH held AS MATERIALIZED (
  SELECT id FROM {schema}.jobs
  WHERE id = ANY($1::bigint[]) AND {fences}
  ORDER BY id FOR UPDATE
)
UPDATE {schema}.jobs AS j
SET fence = j.fence + 1, attempts = j.attempts - t.uncounted::int, last_error = nullif(t.error, ''),
  run_at = now() + t.delay * interval '1 microsecond'
FROM json_to_recordset($3::json) AS t(id bigint, fence int, delay bigint, error text, uncounted boolean)
WHERE j.id = ANY(ARRAY(SELECT id FROM held)) AND j.id = t.id AND j.fence = t.fence
RETURNING j.id, j.fence - 1
