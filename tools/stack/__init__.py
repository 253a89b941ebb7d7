"""The local stack: PostgreSQL, an S3 server, ingest, the applier and Prometheus as processes of
their own on loopback, without containers.

`make up` starts what is missing and waits until it answers, `make down` stops it in order, `make
reset` forgets the data as well. Everything lies below one folder. Invariant: a process is signalled
only while it is surely the one that was started here, and nothing is deleted that was not made
here.
"""
