-- Moves jobs to the dead letters.
-- $1: ids, $2: fences ({fences}: fences.sql), $3: a JSON array of objects: id, fence, reason, error.
-- Returns id, fence of those that were moved.
WITH held AS MATERIALIZED (
  SELECT id FROM {schema}.jobs
  WHERE id = ANY($1::bigint[]) AND {fences}
  ORDER BY id FOR UPDATE
), gone AS (
  DELETE FROM {schema}.jobs WHERE id = ANY(ARRAY(SELECT id FROM held))
  RETURNING id, fence, kind, key, payload, version, dedupe, attempts, enqueued_at
), added AS (
  INSERT INTO {schema}.jobs_dead (id, kind, key, payload, version, dedupe, attempts, enqueued_at, reason, last_error)
  SELECT id, kind, key, payload, version, dedupe, attempts, enqueued_at, t.reason, t.error
  FROM gone JOIN json_to_recordset($3::json) AS t(id bigint, fence int, reason text, error text) USING (id, fence)
)
SELECT id, fence FROM gone
