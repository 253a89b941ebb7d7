"""Frames from the replication connection, in batches."""
