-- Removes dead letters.
-- $1: ids.
-- Returns the ids that were removed.
WITH open AS MATERIALIZED (
  SELECT id FROM {schema}.jobs_dead WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE
)
DELETE FROM {schema}.jobs_dead WHERE id = ANY(ARRAY(SELECT id FROM open))
RETURNING id
