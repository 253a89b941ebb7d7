"""The files that `init` writes. `@PIPELINE@` and `@PLACE@` (a file:// address) are replaced."""

CONFIGURATION = """\
# One pipeline: one slot, one publication, one database, one spool, one lake.
# Every key: `sluice config schema`. What is in force: `sluice config show`.
version: 1
pipeline: @PIPELINE@

source:
  # Any libpq connection string. Keep the password out of this file: set SLUICE_SOURCE__DSN, or SLUICE_SOURCE__DSN_FILE with the path of a mounted secret.
  dsn: "postgresql://sluice@127.0.0.1:5432/postgres"
  # Tables to carry, as schema.table with * and ?. Without it: all that the publication has.
  tables: ["public.*"]
  # slot: sluice_@PIPELINE@
  # publication: sluice_@PIPELINE@

spool:
  # file://, s3://, gs://, az:// or abfss://. Committed transactions become durable here before PostgreSQL may forget them.
  uri: "@PLACE@/spool"
  # options: {aws_region: eu-central-1, aws_endpoint: "https://..."}
  # max_delay: 2s
  # max_bytes: 128MiB

lake:
  # Each table lives at <uri>/<schema>/<table>.
  uri: "@PLACE@/lake"
  mode: mirror

# apply: {spark_master: "local[*]", driver_memory: 2GiB, workers: 2}
# telemetry: {listen: "127.0.0.1:9187", apply_listen: "127.0.0.1:9188", log_format: auto, log_level: info}
# tables: {"public.events": {mode: changelog}}
"""

VARIABLES = """\
# Copy to .env and keep it out of version control. `sluice config env` lists every variable.
SLUICE_SOURCE__DSN=postgresql://sluice:change-me@127.0.0.1:5432/postgres
# SLUICE_SPOOL__OPTIONS__AWS_ACCESS_KEY_ID=
# SLUICE_SPOOL__OPTIONS__AWS_SECRET_ACCESS_KEY=
"""

GRANTS = """\
-- The role that Sluice connects as. Run as a superuser, in the database to be carried.
-- REPLICATION lets the role read every published table without SELECT, and create and drop slots: keep it for this role, and let pg_hba.conf
-- admit it to this one database only, from one address, over TLS with scram-sha-256.
CREATE ROLE sluice LOGIN REPLICATION PASSWORD 'change-me';
GRANT CONNECT ON DATABASE :"DBNAME" TO sluice;

-- The first copy of each table reads it by SELECT: repeat for each schema.
GRANT USAGE ON SCHEMA public TO sluice;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO sluice;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO sluice;

-- The publication belongs to the owner of the tables. `sluice setup --print-sql` prints it with your tables.
-- In postgresql.conf: wal_level = logical; max_slot_wal_keep_size to what the disk can spare.
"""
