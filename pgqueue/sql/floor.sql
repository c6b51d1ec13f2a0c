-- $2: for how long a job may have been due, in microseconds. See floor.go.
AND run_at >= now() - $2::bigint * interval '1 microsecond'
