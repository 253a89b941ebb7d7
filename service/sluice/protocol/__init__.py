"""Bytes to values: outer frames, control messages, row tuples walked column by column. No I/O, no
clock, no state between calls (but for CopyRows, which remembers the header and the trailer of
one copy).

Everything read is checked against its bounds first; malformed input raises DecodeError and nothing
else. (PostgreSQL: Logical Streaming Replication Protocol, Message Formats.)
"""
