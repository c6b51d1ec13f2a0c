-- Looks at what there is and what this role may do, in the catalog, which everybody may read.
-- $1: the schema's name.
-- Returns server_version_num, the encoding, whether the server is a standby, the role, whether the schema is there, whether
-- the role may use it, which of our tables are there, and the rights that are missing.
WITH there AS (
  SELECT c.oid, c.relname, c.relkind FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  WHERE n.nspname = $1::text AND c.relname IN ('jobs', 'jobs_dead', 'jobs_once', 'jobs_migrations', 'jobs_id_seq')
), needed (relname, rights) AS (VALUES
  ('jobs', '{SELECT,INSERT,UPDATE,DELETE}'::text[]), ('jobs_dead', '{SELECT,INSERT,UPDATE,DELETE}'),
  ('jobs_once', '{SELECT,INSERT,UPDATE,DELETE}'), ('jobs_migrations', '{SELECT}')
), missing (item) AS (
  SELECT r || ' on ' || there.relname FROM there JOIN needed USING (relname), unnest(needed.rights) AS r
  WHERE CASE WHEN there.relkind = 'r' THEN NOT has_table_privilege(there.oid, r) END
  UNION ALL
  SELECT 'USAGE on ' || relname FROM there WHERE CASE WHEN relkind = 'S' THEN NOT has_sequence_privilege(oid, 'USAGE') END
)
SELECT current_setting('server_version_num'), pg_catalog.getdatabaseencoding(), pg_is_in_recovery(), current_user,
  EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1),
  coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = $1), false),
  (SELECT string_agg(relname, ',') FROM there),
  (SELECT string_agg(item, ', ' ORDER BY item) FROM missing)
