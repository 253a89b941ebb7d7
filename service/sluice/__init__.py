"""Sluice's ingest service: PostgreSQL's write-ahead log to Parquet segments that nobody can lose.

The pipeline, and who keeps which promise:

    source        talks to PostgreSQL; starts only where continuity is proven; raw frames, status messages on their own timer
    protocol      frames to control messages and row columns; malformed bytes are one error and change nothing
    transaction   messages to whole transactions; a row belongs to the shape in force when it arrived
    spool         columns to typed Arrow to Parquet; a value is exact or it is marked
    store         object storage; create-only means create-only, durable means durable
    manifest      the log that is the truth; one writer, dense numbers, a hash chain
    ack           the one number PostgreSQL is told; only a receipt moves it
    runtime       puts the stages together; start, supervision, drain
    telemetry     shows what others count
    contract      what is on disk, shared with the applier (package spark_jobs)

Data goes right, imports go down: `contract`, `protocol`, `transaction` and `ack` run without network, clock or threads.
"""
