"""Windows beyond one machine's memory: read, folded, found and written by Spark's executors, committed at once."""
