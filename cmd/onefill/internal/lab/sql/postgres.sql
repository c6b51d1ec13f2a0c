-- The lab's origin. %[1]s is a schema of its own, dropped after the run.
CREATE SCHEMA %[1]s;

-- How reads of a key behave.
CREATE TABLE %[1]s.plan (
    key    text PRIMARY KEY,
    wait   double precision NOT NULL, -- seconds
    failed boolean NOT NULL
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

-- A slow query: it sees the row as it was when it began (STABLE: one snapshot),
-- and the time passes in the database.
CREATE FUNCTION %[1]s.fetch(wanted text) RETURNS text LANGUAGE plpgsql STABLE AS $fetch$
DECLARE
    how   %[1]s.plan%%ROWTYPE;
    found text;
BEGIN
    SELECT * INTO how FROM %[1]s.plan WHERE key = wanted;
    SELECT body INTO found FROM %[1]s.item WHERE key = wanted;
    PERFORM pg_sleep(how.wait);
    IF how.failed THEN
        RAISE EXCEPTION '%[2]s';
    END IF;
    RETURN found;
END
$fetch$;
