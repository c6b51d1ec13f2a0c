-- A lease is run_at itself: a claim moves it to the lease's end. fence grows with each
-- claim and each return, and whoever wants to end a claim names it. attempts are the
-- claims that count. due_at is what run_at was before the newest claim. The checks are
-- for rows that others insert: one that a claim cannot read would keep those that are
-- claimed with it from being delivered, again and again.
CREATE TABLE {schema}.jobs (
  id          bigserial PRIMARY KEY,
  run_at      timestamptz NOT NULL DEFAULT now() CHECK (isfinite(run_at)),
  enqueued_at timestamptz NOT NULL DEFAULT now() CHECK (isfinite(enqueued_at)),
  due_at      timestamptz,
  fence       int NOT NULL DEFAULT 0,
  attempts    int NOT NULL DEFAULT 0,
  merge       boolean NOT NULL DEFAULT false,
  kind        text NOT NULL,
  key         text NOT NULL DEFAULT '',
  payload     jsonb NOT NULL DEFAULT 'null',
  version     numeric(20) NOT NULL DEFAULT 0 CHECK (version BETWEEN 0 AND 18446744073709551615),
  dedupe      text NOT NULL DEFAULT gen_random_uuid()::text,
  last_error  text
) WITH (
  -- Every job is inserted, updated and deleted within moments: the defaults, which wait
  -- for a fifth of the table to change and then throttle themselves, come too late.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000
);

CREATE INDEX jobs_run_at ON {schema}.jobs (run_at);

-- The jobs that another one may be merged with: a claim takes them out.
CREATE UNIQUE INDEX jobs_merge ON {schema}.jobs (kind, key) WHERE merge AND fence = 0;

CREATE TABLE {schema}.jobs_dead (
  id          bigint PRIMARY KEY,
  kind        text NOT NULL,
  key         text NOT NULL,
  payload     jsonb NOT NULL,
  version     numeric(20) NOT NULL,
  dedupe      text NOT NULL,
  attempts    int NOT NULL,
  enqueued_at timestamptz NOT NULL,
  died_at     timestamptz NOT NULL DEFAULT now(),
  reason      text NOT NULL,
  last_error  text NOT NULL,
  replayed_as bigint,
  replayed_at timestamptz
);

CREATE INDEX jobs_dead_open ON {schema}.jobs_dead (id) WHERE replayed_as IS NULL;

-- What Once has seen.
CREATE TABLE {schema}.jobs_once (
  dedupe  text PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX jobs_once_seen_at ON {schema}.jobs_once (seen_at);
