DROP TABLE {schema}.jobs_once;
DROP TABLE {schema}.jobs_dead;
DROP TABLE {schema}.jobs;
