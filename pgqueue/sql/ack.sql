-- Removes jobs that are done. This statement and all others about claims
--   lock rows in the order of their ids, so that two of them that overlap cannot deadlock;
--   find rows by id = ANY(…), which has one plan. A join has others, of which the planner
--   takes the worst, a walk over everything that was deleted, when its statistics say
--   that the table is empty (IS TRUE keeps the second condition from becoming a join).
-- $1: ids, $2: fences.
-- Returns id, fence of those that were removed.
WITH held AS MATERIALIZED (
  SELECT id FROM {schema}.jobs
  WHERE id = ANY($1::bigint[]) AND ((id, fence) IN (SELECT id, fence FROM unnest($1::bigint[], $2::int[]) AS t(id, fence))) IS TRUE
  ORDER BY id FOR UPDATE
)
DELETE FROM {schema}.jobs WHERE id = ANY(ARRAY(SELECT id FROM held))
RETURNING id, fence
