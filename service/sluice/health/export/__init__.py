"""What ingest counts and what a report finds, brought to metrics."""
