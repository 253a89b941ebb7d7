"""A commit to a Delta table without a Spark job: which rows go, which come, and Delta's transaction."""
