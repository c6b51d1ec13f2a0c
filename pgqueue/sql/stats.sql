-- Counts, each no further than the limit.
-- {limit}: how far.
-- Returns the jobs that are due, those that are not, the dead letters that were not replayed, and the lag in microseconds.
SELECT
  (SELECT count(*) FROM (SELECT FROM {schema}.jobs WHERE run_at <= now() LIMIT {limit}) AS t),
  (SELECT count(*) FROM (SELECT FROM {schema}.jobs WHERE run_at > now() LIMIT {limit}) AS t),
  (SELECT count(*) FROM (SELECT FROM {schema}.jobs_dead WHERE replayed_as IS NULL LIMIT {limit}) AS t),
  coalesce((SELECT (extract(epoch FROM now() - run_at) * 1000000)::bigint FROM {schema}.jobs WHERE run_at <= now() ORDER BY run_at LIMIT 1), 0)
