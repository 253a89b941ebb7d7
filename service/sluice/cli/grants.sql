-- The privileges that the role of one Sluice pipeline needs, and why. It needs nothing more: not SUPERUSER, not BYPASSRLS, and no ownership.
--
-- Run it with psql in the database to be carried, as a superuser or as your service's administrator:
--
--   psql -d shop -v role=sluice -v tables='public.orders, public.customers' -f grants.sql
--
--   role         the role of the pipeline; one for each pipeline (sluice)
--   publication  the pipeline's source.publication (sluice_@PIPELINE@)
--   tables       the tables of the publication, if it does not exist yet; without it, an existing publication is used as it is
--
-- The script only adds privileges, so run it again when the publication has new tables. `sluice check` then says what is still missing.
-- The script sets no password. Use `\password sluice` in psql, which does not send it in plain text. A client certificate needs no password.

\set ON_ERROR_STOP on
\if :{?role}
\else
  \set role sluice
\endif
\if :{?publication}
\else
  \set publication sluice_@PIPELINE@
\endif

-- LOGIN: to connect at all.
-- REPLICATION: to create the pipeline's slot and to stream from it. This attribute is powerful: with it the role receives all rows of every published
-- table of this database without SELECT, can create slots that hold back WAL, and can drop or advance other slots. So give it only to this role. In
-- pg_hba.conf, admit the role with a line that has the database's name and one address. REPLICATION lets it copy the whole cluster, so admit it from nowhere else:
--
--   hostssl  shop  sluice  10.0.0.7/32  scram-sha-256
--
-- On managed services, grant the service's own role instead: GRANT rds_replication TO sluice (Amazon); ALTER ROLE sluice REPLICATION as their administrator (others).
SELECT format('CREATE ROLE %I', :'role') WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'role') \gexec
SELECT format('ALTER ROLE %I LOGIN REPLICATION', :'role') \gexec

-- CONNECT: every role has it through PUBLIC, unless somebody revoked it.
SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'role') \gexec

-- The publication defines which changes the server sends. It belongs to the owner of the tables, so that the pipeline cannot widen it.
-- publish_via_partition_root: a partitioned table is one table in the lake.
\if :{?tables}
SELECT format('CREATE PUBLICATION %I FOR TABLE %s WITH (publish = ''insert, update, delete, truncate'', publish_via_partition_root = true)', :'publication', :'tables')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = :'publication') \gexec
\endif

-- USAGE on the schemas and SELECT on the published tables: the first snapshot of a table, and each later one, reads it. Changes do not need it.
SELECT DISTINCT format('GRANT USAGE ON SCHEMA %I TO %I', schemaname, :'role') FROM pg_catalog.pg_publication_tables WHERE pubname = :'publication' \gexec
SELECT format('GRANT SELECT ON TABLE %I.%I TO %I', schemaname, tablename, :'role') FROM pg_catalog.pg_publication_tables WHERE pubname = :'publication' \gexec

-- The script does not grant the following. You decide:
--   pg_read_all_stats  lets `sluice check` and `sluice status` show how long other sessions' transactions have been open; the role then also sees their statements.
--                      source.snapshot_max_replica_lag and source.snapshot_max_active_sessions need it.
--   BYPASSRLS          needed to read tables with row-level security; it exempts the role from the policies of every table of the server.
--   CREATE on the database and ownership of the tables: needed only if `sluice setup` is to create the publication itself.
-- In postgresql.conf, set wal_level = logical, and max_slot_wal_keep_size to what the disk can spare.
