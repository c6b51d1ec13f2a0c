-- Makes leases last for longer.
-- $1: ids, $2: fences ({fences}: fences.sql), $3: the lease in microseconds from now.
-- Returns id, fence of those whose lease was extended.
WITH held AS MATERIALIZED (
  SELECT id FROM {schema}.jobs
  WHERE id = ANY($1::bigint[]) AND {fences}
  ORDER BY id FOR UPDATE
)
UPDATE {schema}.jobs SET run_at = now() + $3::bigint * interval '1 microsecond'
WHERE id = ANY(ARRAY(SELECT id FROM held))
RETURNING id, fence
