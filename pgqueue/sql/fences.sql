-- Ids and fences belong together. IS TRUE keeps this from becoming a join.
-- $1: ids, $2: fences.
((id, fence) IN (SELECT id, fence FROM unnest($1::bigint[], $2::int[]) AS t(id, fence))) IS TRUE
