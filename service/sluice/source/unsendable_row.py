"""Of which table a row is that the server cannot send.

Invariant: nothing is acknowledged, and no value is kept. The server names the row's position and not its table, so the
log is read again from the same place by a session without conversion of encodings: to that one the server sends the row
as it is stored. (PostgreSQL: Streaming Replication Protocol; Automatic Character Set Conversion.)
"""

import select
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress

import psycopg
from psycopg import pq

from sluice.errors import ServiceError, SourceRefused
from sluice.protocol import constants as c
from sluice.source.sessions import SourceOptions, UnsendableRow
from sluice.source.start_replication import start_replication

SEARCH_SECONDS = 30.0
"""Less than wal_sender_timeout is by default: this stream reports nothing."""
_HEAD_BYTES = 4 + 2 * 64
"""An oid and the two names behind it, of at most 63 bytes and a zero each."""


def named(options: SourceOptions, error: UnsendableRow) -> SourceRefused:
    """`error` for a person, with the table of the row, as far as it can be found out in SEARCH_SECONDS."""
    table = ""
    with suppress(ServiceError, psycopg.Error):
        started = start_replication(options, command=error.command, expect=None, as_stored=True)
        with closing(started.conn):
            table = table_of(_frames(started.conn.pgconn, options), error.at_lsn)
    whose = f"a row of {table}" if table else "a row of a table that could not be determined"
    return SourceRefused(f"{error}: {whose}", hint=error.hint)


def table_of(frames: Iterable[bytes | memoryview], at_lsn: int) -> str:
    """The table of the row message at `at_lsn`, by the relation messages before it; empty when what is there is no row,
    or nothing.
    """
    names: dict[int, str] = {}
    in_stream = False
    for frame in frames:
        if frame[0] != c.XLOGDATA:
            continue
        tag = frame[c.XLOGDATA_HEADER_BYTES]
        in_stream = tag == c.STREAM_START or (in_stream and tag != c.STREAM_STOP)
        begin = c.XLOGDATA_HEADER_BYTES + 1 + (4 if in_stream else 0)
        head = bytes(frame[begin : begin + _HEAD_BYTES])
        oid = int.from_bytes(head[:4], "big")
        if tag == c.RELATION:
            schema, name, *_ = head[4:].split(b"\0")
            names[oid] = f"{(schema or b'pg_catalog').decode('utf-8', 'replace')}.{name.decode('utf-8', 'replace')}"
        # The beginning of a transaction is at the place of its first row.
        elif int.from_bytes(frame[1:9], "big") == at_lsn and tag in (*c.ROW_TAGS, c.MESSAGE):
            return names.get(oid, "") if tag in c.ROW_TAGS else ""
    return ""


def _frames(pgconn: pq.abc.PGconn, options: SourceOptions) -> Iterator[bytes | memoryview]:
    deadline = time.monotonic() + SEARCH_SECONDS
    count = 0
    while count >= 0 and time.monotonic() < deadline:
        options.cancellation.check()
        count, frame = pgconn.get_copy_data(1)
        if count > 0:
            yield frame
        elif count == 0 and select.select([pgconn.socket], [], [], 0.2)[0]:
            pgconn.consume_input()
