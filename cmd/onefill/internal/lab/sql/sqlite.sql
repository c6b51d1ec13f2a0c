-- The lab's embedded origin: a file that the reader processes share. Times are
-- microseconds since 1970.
CREATE TABLE plan (
    key         TEXT PRIMARY KEY,
    wait_us     INTEGER NOT NULL,
    failed      INTEGER NOT NULL,
    workers     INTEGER NOT NULL, -- operations that are worked on at once; 0: all
    deadline_us INTEGER NOT NULL  -- queue included; where workers is set
);
CREATE TABLE item (key TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE counter (key TEXT PRIMARY KEY, operations INTEGER NOT NULL);
CREATE TABLE operation (
    key     TEXT NOT NULL,
    number  INTEGER NOT NULL,
    process INTEGER NOT NULL,
    started INTEGER NOT NULL,
    ended   INTEGER,
    outcome TEXT,
    PRIMARY KEY (key, number)
);
-- Until when each of the workers has something to do.
CREATE TABLE worker (number INTEGER PRIMARY KEY, free_us INTEGER NOT NULL);
