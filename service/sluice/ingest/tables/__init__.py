"""Which tables are followed, in which schema version, and when a table must be marked.

`followed_tables` is the way in, and holds the lock for `generations` (a table joins, begins again or
leaves), `shapes` (from one schema version to the next) and what these two use. `catalog_watch` compares
the catalog with the manifest, and has `requests` carried out and dropped tables forgotten.
"""
