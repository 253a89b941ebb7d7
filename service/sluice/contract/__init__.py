"""What is on disk (manifest entries, table schemas, envelope columns, object keys, receipts) and the
rules about it that both sides share: can this table be carried, can the lake follow this change.

Owns the format that outlives a process and that a second program may read. Standard library only:
anything may import it; it imports nothing but the modules at the bottom of the tree (`errors`,
`lsn`, `findings`, `quoting`). A change here is a change of format: bump `entries.FORMAT_VERSION` and
say so in the CHANGELOG.
"""
