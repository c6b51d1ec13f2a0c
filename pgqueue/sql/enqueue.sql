-- Adds jobs.
-- $1: a JSON array of objects: n, kind, key, payload, version, dedupe, delay in microseconds.
-- Returns n, id.
WITH input AS MATERIALIZED (
  SELECT n, kind, coalesce(key, '') AS key, coalesce(payload, 'null') AS payload, coalesce(version, 0) AS version,
    coalesce(dedupe, gen_random_uuid()::text) AS dedupe, coalesce(delay, 0) AS delay, nextval({sequence}) AS id
  FROM json_to_recordset($1::json) AS t(n int, kind text, key text, payload jsonb, version numeric, dedupe text, delay bigint)
), added AS (
  INSERT INTO {schema}.jobs (id, kind, key, payload, version, dedupe, run_at)
  SELECT id, kind, key, payload, version, dedupe, now() + delay * interval '1 microsecond' FROM input
)
SELECT n, id FROM input
