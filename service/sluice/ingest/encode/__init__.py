"""Rows to typed Arrow batches, Parquet segments, and units of the next manifest entry."""
