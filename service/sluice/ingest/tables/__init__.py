"""Which tables are carried, in which schema version, and when a table must be marked."""
