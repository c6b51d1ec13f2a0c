-- Returns the version that the tables have.
SELECT coalesce(max(version), 0) FROM {schema}.jobs_migrations
