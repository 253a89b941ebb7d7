"""The files that `init` writes. `@PIPELINE@` and `@PLACE@` (a file:// address) are replaced."""

from importlib.resources import files

CONFIGURATION = """\
# One pipeline: one slot, one publication, one database, one spool, one lake.
# `sluice config schema` describes every key. `sluice config show` prints the settings in force.
version: 1
pipeline: @PIPELINE@

source:
  # Any libpq connection string. Keep the password out of this file: set SLUICE_SOURCE__DSN, or
  # SLUICE_SOURCE__DSN_FILE with the path of a mounted secret.
  dsn: "postgresql://sluice@127.0.0.1:5432/postgres"
  # Tables to carry, as schema.table with * and ?. Without this key: all tables of the publication.
  tables: ["public.*"]
  # slot: sluice_@PIPELINE@
  # publication: sluice_@PIPELINE@

spool:
  # file://, s3://, gs://, az:// or abfss://. Committed transactions become durable here before
  # PostgreSQL may remove them from its WAL.
  uri: "@PLACE@/spool"
  # options: {aws_region: eu-central-1, aws_endpoint: "https://..."}
  # max_delay: 2s
  # max_bytes: 128MiB

lake:
  # Each lake table is at <uri>/<schema>/<table>.
  uri: "@PLACE@/lake"
  mode: mirror

# apply: {spark_master: "local[*]", driver_memory: 2GiB, workers: 2}
# telemetry: {listen: "127.0.0.1:9187", apply_listen: "127.0.0.1:9188", log_format: auto, log_level: info}
# tables: {"public.events": {targets: [{kind: changelog}]}}
"""

VARIABLES = """\
# Sluice reads only its environment, not this file. Copy this file to .env, fill it in, keep it out of
# version control, and load it before you start Sluice:
#   set -a; . ./.env; set +a
# systemd (EnvironmentFile=) and containers (--env-file) read it too. `sluice config env` lists every variable.
SLUICE_SOURCE__DSN=postgresql://sluice:change-me@127.0.0.1:5432/postgres
# SLUICE_SPOOL__OPTIONS__AWS_ACCESS_KEY_ID=
# SLUICE_SPOOL__OPTIONS__AWS_SECRET_ACCESS_KEY=
"""

GRANTS = files(__package__).joinpath("grants.sql").read_text(encoding="utf-8")
