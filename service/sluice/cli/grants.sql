-- What the role of one Sluice pipeline may do, and why. Nothing more is needed: not SUPERUSER, not BYPASSRLS, not the ownership of anything.
--
-- Run it with psql in the database to be carried, as a superuser or as your service's administrator:
--
--   psql -d shop -v role=sluice -v tables='public.orders, public.customers' -f grants.sql
--
--   role         the role of the pipeline; one for each pipeline (sluice)
--   publication  the pipeline's source.publication (sluice_@PIPELINE@)
--   tables       what the publication is made for, if it does not exist yet; left out: a publication that exists is taken as it is
--
-- It only ever adds, so run it again when the publication has new tables. `sluice check` then says what is still missing.
-- It sets no password: `\password sluice` in psql sends none in clear; a client certificate needs none.

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
-- REPLICATION: to create the pipeline's slot and to stream from it. It is worth more than it looks: with it the role receives all rows of every published
-- table of this database without SELECT, can make slots that hold back WAL, and can drop or use up other slots. So give it to this role alone, and let
-- pg_hba.conf admit the role by a line with the database's name and one address, never with the keyword `replication`, which would let it copy the cluster:
--
--   hostssl  shop  sluice  10.0.0.7/32  scram-sha-256
--
-- Managed services grant a role of theirs instead: GRANT rds_replication TO sluice (Amazon); ALTER ROLE sluice REPLICATION as their administrator (others).
SELECT format('CREATE ROLE %I', :'role') WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'role') \gexec
SELECT format('ALTER ROLE %I LOGIN REPLICATION', :'role') \gexec

-- CONNECT: every role has it through PUBLIC, unless somebody took it away.
SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'role') \gexec

-- The publication says which changes may leave. It belongs to the owner of the tables, so that the pipeline cannot widen it.
-- publish_via_partition_root: a partitioned table is one table in the lake.
\if :{?tables}
SELECT format('CREATE PUBLICATION %I FOR TABLE %s WITH (publish = ''insert, update, delete, truncate'', publish_via_partition_root = true)', :'publication', :'tables')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = :'publication') \gexec
\endif

-- USAGE on the schemas and SELECT on the published tables: the first snapshot of a table, and each later one, reads it. Changes do not need it.
SELECT DISTINCT format('GRANT USAGE ON SCHEMA %I TO %I', schemaname, :'role') FROM pg_catalog.pg_publication_tables WHERE pubname = :'publication' \gexec
SELECT format('GRANT SELECT ON TABLE %I.%I TO %I', schemaname, tablename, :'role') FROM pg_catalog.pg_publication_tables WHERE pubname = :'publication' \gexec

-- Not granted, and yours to decide:
--   pg_read_all_stats  `sluice check` and `sluice status` could say how long other sessions' transactions are open; it also shows their statements.
--                      source.snapshot_max_replica_lag and source.snapshot_max_active_sessions need it.
--   BYPASSRLS          tables with row level security cannot be read without it; it lifts the policies of every table of the server.
--   CREATE on the database and the tables' ownership: only if `sluice setup` shall make the publication itself.
-- In postgresql.conf: wal_level = logical, and max_slot_wal_keep_size to what the disk can spare.
