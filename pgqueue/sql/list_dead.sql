-- Lists dead letters, one page.
-- $1: the id to begin after, $2: kind, $3: key, $4: id, each empty for any, $5: replayed ones, too; {limit}: how many.
-- Returns id, kind, key, payload, version, dedupe, attempts, reason, last_error, died_at in microseconds of Unix time, replayed_as.
SELECT id, kind, key, payload, version, dedupe, attempts, reason, last_error,
  (extract(epoch FROM died_at) * 1000000)::bigint, replayed_as
FROM {schema}.jobs_dead
WHERE id > $1::bigint AND ($2::text = '' OR kind = $2) AND ($3::text = '' OR key = $3)
  AND ($4::text = '' OR id = nullif($4, '')::bigint) AND ($5::boolean OR replayed_as IS NULL)
ORDER BY id LIMIT {limit}
