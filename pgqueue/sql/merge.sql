-- Adds jobs, or merges each with one of its kind and key that nobody has claimed. A
-- claim that is under way is waited for, and then there is nothing to merge with. In
-- the order of kind and key, so that two writers do not wait for each other.
-- $1: as for enqueue.sql, each kind and key once.
-- Returns n, id.
WITH input AS MATERIALIZED (
  SELECT n, kind, key, coalesce(payload, 'null') AS payload, coalesce(version, 0) AS version,
    coalesce(dedupe, gen_random_uuid()::text) AS dedupe, coalesce(delay, 0) AS delay
  FROM json_to_recordset($1::json) AS t(n int, kind text, key text, payload jsonb, version numeric, dedupe text, delay bigint)
), added AS (
  INSERT INTO {schema}.jobs AS j (merge, kind, key, payload, version, dedupe, run_at)
  SELECT true, kind, key, payload, version, dedupe, now() + delay * interval '1 microsecond' FROM input
  ORDER BY kind COLLATE "C", key COLLATE "C"
  ON CONFLICT (kind, key) WHERE merge AND fence = 0 DO UPDATE SET
    payload = CASE WHEN excluded.version >= j.version OR excluded.version = 0 THEN excluded.payload ELSE j.payload END,
    dedupe = CASE WHEN excluded.version >= j.version OR excluded.version = 0 THEN excluded.dedupe ELSE j.dedupe END,
    version = CASE WHEN 0 IN (excluded.version, j.version) THEN 0 ELSE greatest(excluded.version, j.version) END,
    run_at = least(excluded.run_at, j.run_at)
  RETURNING id, kind, key
)
SELECT input.n, added.id FROM added JOIN input USING (kind, key)
