-- The lab's origin. %[1]s is a schema of its own, dropped after the run. %[2]s and
-- %[3]s are the texts of its errors.
CREATE SCHEMA %[1]s;

-- How reads of a key behave.
CREATE TABLE %[1]s.plan (
    key      text PRIMARY KEY,
    wait     double precision NOT NULL, -- seconds
    failed   boolean NOT NULL,
    workers  int NOT NULL,             -- operations that are worked on at once; 0: all
    deadline double precision NOT NULL -- seconds, queue included; where workers is set
);

CREATE TABLE %[1]s.item (
    key  text PRIMARY KEY,
    body text NOT NULL
);

-- One row a key: how many operations have begun.
CREATE TABLE %[1]s.counter (
    key        text PRIMARY KEY,
    operations bigint NOT NULL
);

CREATE TABLE %[1]s.operation (
    key     text NOT NULL,
    number  bigint NOT NULL,
    process int NOT NULL,
    started timestamptz NOT NULL,
    ended   timestamptz,
    outcome text,
    PRIMARY KEY (key, number)
);

-- Who comes next, where there are workers.
CREATE SEQUENCE %[1]s.ticket;

-- A slow query: it sees the row as it was when it began (STABLE: one snapshot),
-- and the time passes in the database. Where the number of workers is limited, each has
-- a queue, an advisory lock, and the queries are dealt out to them in turn. As all
-- take equally long, that is one queue, first come, first served.
CREATE FUNCTION %[1]s.fetch(wanted text) RETURNS text LANGUAGE plpgsql STABLE AS $fetch$
DECLARE
    how   %[1]s.plan%%ROWTYPE;
    found text;
    began timestamptz := clock_timestamp();
    rest  double precision;
BEGIN
    SELECT * INTO how FROM %[1]s.plan WHERE key = wanted;
    SELECT body INTO found FROM %[1]s.item WHERE key = wanted;
    IF how.workers > 0 THEN
        PERFORM set_config('lock_timeout', ceil(how.deadline * 1000)::text, true);
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtext('%[1]s'), (nextval('%[1]s.ticket') %% how.workers)::int);
        EXCEPTION WHEN lock_not_available THEN
            RAISE EXCEPTION '%[3]s';
        END;
        rest := how.deadline - extract(epoch FROM clock_timestamp() - began);
        IF rest < how.wait THEN
            PERFORM pg_sleep(rest);
            RAISE EXCEPTION '%[3]s';
        END IF;
    END IF;
    PERFORM pg_sleep(how.wait);
    IF how.failed THEN
        RAISE EXCEPTION '%[2]s';
    END IF;
    RETURN found;
END
$fetch$;
