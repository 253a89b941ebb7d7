"""Many pipelines on one machine: an ingest process for each, one applier for all, one page."""
