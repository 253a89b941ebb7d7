"""What is on disk: manifest entries, table schemas, envelope columns, object keys, receipts.

Owns the format that outlives a process and that a second program may read. Standard library only:
anything may import it, it imports nothing but `sluice.errors` and `sluice.lsn`. A change here is a
change of format: bump `entries.FORMAT_VERSION` and say so in the CHANGELOG.
"""
