-- Makes new jobs of dead letters and marks those.
-- $1: ids.
-- Returns the id of each letter that was replayed and the id of its new job.
WITH open AS MATERIALIZED (
  SELECT id FROM {schema}.jobs_dead WHERE id = ANY($1::bigint[]) AND replayed_as IS NULL ORDER BY id FOR UPDATE
), letters AS (
  UPDATE {schema}.jobs_dead SET replayed_as = nextval({sequence}), replayed_at = now()
  WHERE id = ANY(ARRAY(SELECT id FROM open))
  RETURNING id, replayed_as, kind, key, payload, version, dedupe
), added AS (
  INSERT INTO {schema}.jobs (id, kind, key, payload, version, dedupe)
  SELECT replayed_as, kind, key, payload, version, dedupe FROM letters
)
SELECT id, replayed_as FROM letters
