"""The names of lake tables in a catalog. `entries` says what should stand there and judges what does, `columns` reads
the columns of a Delta table, `hive`, `glue` and `unity` speak with a catalog each, and `registrar` keeps names as they
should be, beside the windows.
"""
