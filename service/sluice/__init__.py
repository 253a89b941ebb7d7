"""Sluice's ingest service: PostgreSQL's write-ahead log to durable Parquet segments.

Folders follow the data. Each package states its promise in its own docstring:

    protocol    wire bytes to control messages and row columns, and the status message back
    contract    what is on disk, shared with the applier (package sluice_spark)
    store       object storage: create-only means create-only, durable means durable
    tables      the life of a table: events in, decisions out; no I/O, no clock, no thread
    manifest    the log that says what is published: one writer, dense numbers, a hash chain
    source      PostgreSQL: sessions, catalog, slot, snapshot export
    ingest      receive, assemble, tables, encode, commit; and the initial snapshot of a table
    health      facts to one verdict, and everything that renders it
    process     one process of one pipeline
    operate     set up, check, look after slot and spool
    cli         one module per command

Data flows to the right and imports go down: pyproject.toml holds the layers.
"""
