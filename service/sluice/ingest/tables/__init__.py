"""The owner of the tables' life, and those that bring it what happens.

`followed_tables` holds the lock, asks the catalog and stores what `sluice.tables` decides. `catalog_watch` looks at the
catalog, `ddl_signals` reads what the stream says of it, `requests` carries out what operators ask for, and `forgetting`
finds dropped tables that nothing refers to any more.
"""
