"""Bytes to values. No I/O, no clock, no state between calls (except CopyRows, which notes the header
and the trailer of one COPY).

`constants` names every tag, header length and flag, `limits` what PostgreSQL cannot exceed.
`keepalive` reads that message, `frames` joins many into one table. `decoder` decodes control messages
into the values of `messages`, `boundaries` the Begin and Commit messages of a whole batch, `tuples`
the rows. `copy_rows` reads the rows of a COPY, `standby_status` builds the reply to the server.

Everything read is checked against its bounds first; malformed input raises DecodeError and nothing
else. (PostgreSQL: Logical Streaming Replication Protocol, Message Formats.)
"""
