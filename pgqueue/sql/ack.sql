-- Removes jobs that are done. This statement and all others about claims
--   lock rows in the order of their ids, so that two of them that overlap cannot deadlock:
--   this one, of which there are most, because it walks the primary key (acking in
--   settle.go), which is cheaper than to lock them first, as the others do;
--   find rows by id = ANY(…), which has one plan. A join has others, of which the planner
--   takes the worst, a walk over everything that was deleted, when its statistics say
--   that the table is empty (see fences.sql for the second condition).
-- $1: ids, $2: fences. {fences}: fences.sql, or same_fence.sql where all are one.
-- Returns id, fence of those that were removed.
DELETE FROM {schema}.jobs
WHERE id = ANY($1::bigint[]) AND {fences}
RETURNING id, fence
