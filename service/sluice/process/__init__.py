"""One process of one pipeline: ingest, and in `up` the applier beside it."""
