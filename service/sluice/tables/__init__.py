"""The life of a table: what becomes of it, decided in one place. Pure: no I/O, no clock, no thread.

`life` is the way in: `TableLives.decide` takes one of `events` and gives an answer and the decisions, or says what
must be asked of the catalog first. Behind it stand `catalog_seen` (what a look at the catalog means), `generations`
(a table joins, begins again, leaves, or goes stale), `stale` (when a stale table is read again), `column_changes`
(what another shape means), `lake_paths` (where a lake table stands) and `selection`. `ingest.tables` owns the one
instance, stores what it decides, and brings it the events.
"""
