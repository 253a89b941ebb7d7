"""Reading a table as of an exported snapshot, in the very text that the stream would send.

Invariant: what is yielded is every row that the snapshot sees, in the output of the same type
output functions under the same pinned settings, or an error. A snapshot without a lock that races a
rewrite or TRUNCATE reads nothing and says nothing, so the table is locked and its storage is
compared with what it was before the snapshot existed. Must not: write, decode rows, or hold
anything stronger than ACCESS SHARE. (PostgreSQL: COPY; SET TRANSACTION; Explicit Locking.)
"""

import select
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg import pq

from sluice import faults
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import TableSchema
from sluice.errors import SourceRefused, SourceUnavailable
from sluice.ingest.receive.batching import LARGE_PAYLOAD_BYTES
from sluice.ingest.tables.catalog_diff import fingerprint
from sluice.quoting import quote_identifier, quote_literal, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.sessions import SourceOptions, open_query, raise_result, translated

BATCH_BYTES = 8 * 1024 * 1024
LOCK_WAIT_S = 2
"""Longer than ordinary statements hold a lock that excludes reading, and short enough for the
tables behind this one.
"""
_GROW_BUFFER = b"SELECT pg_catalog.repeat('x', 4194304)"
"""As for the stream: libpq then reads megabytes at a time instead of 16 KiB."""
_COALESCE_S = 0.001
"""Lets the socket fill between two reads, so that the server writes without waking us for every 8
KiB.
"""
_ALREADY_TEXT = frozenset((25, 1042, 1043, 1790))
"""text, char(n), varchar(n), refcursor: their binary form is their text form, padding included."""


class SnapshotRaced(SourceUnavailable):
    """The table was rewritten, truncated or changed around the moment of the snapshot: take a new
    snapshot and copy again.
    """


class TableLocked(SourceUnavailable):
    """Somebody holds the table in ACCESS EXCLUSIVE: others can be read meanwhile."""


class TableRefused(SourceRefused):
    """The server does not let this table be read, whereas the connection is as good as for any
    other.
    """


def copy_statement(schema: TableSchema, facts: TableFacts) -> str:
    """The COPY whose every field is the text that the stream would send for it.

    Casting to text instead of calling the output function would differ: char(n) loses its padding,
    boolean is spelled out.
    """
    functions = {column.name: (column.output_function, column.base_type_oid) for column in facts.columns}
    fields = []
    for column in schema.columns:
        if column.name not in functions:
            raise SnapshotRaced(f"{schema.qualified_name} no longer has the column {column.name}")
        function, base_type_oid = functions[column.name]
        name = quote_identifier(column.name)
        fields.append(name if base_type_oid in _ALREADY_TEXT else f"pg_catalog.textin({function}({name}))")
    only = "" if facts.relkind == "p" else "ONLY "
    where = f" WHERE ({facts.row_filter})" if facts.row_filter else ""
    return (
        f"COPY (SELECT {', '.join(fields)} FROM {only}{quote_qualified(facts.schema, facts.name)}{where}) "
        "TO STDOUT (FORMAT binary)"
    )


def read_table(
    options: SourceOptions,
    *,
    schema: TableSchema,
    facts: TableFacts,
    snapshot: str,
    batch_bytes: int = BATCH_BYTES,
    accept_empty: bool = False,
) -> Iterator[list[bytes | memoryview]]:
    """Yields raw CopyData payloads of COPY's binary format; the first begins with its header, the
    last is its trailer. A list is the caller's to empty.

    `facts` must have been read *before* the slot that exported `snapshot` was created. Raises
    SnapshotRaced when the table's storage or shape is another one by now, or when it reads as empty
    although it has rows by the statistics (unless `accept_empty`, for a second try); TableLocked
    and TableRefused when it is this table that cannot be read; SourceError otherwise.
    """
    with closing(open_query(options)) as conn:
        with translated(f"preparing the snapshot of {facts.qualified_name}"):
            _enter_snapshot(conn, snapshot)
            faults.point("snapshot.lock.before")
        with _of_the_table():
            _lock(conn, facts)
        _compare(options, facts)
        faults.point("snapshot.locked")
        statement = copy_statement(schema, facts)
        conn.pgconn.exec_(_GROW_BUFFER)
        with _of_the_table(), translated(f"the snapshot of {facts.qualified_name}"):
            result = conn.pgconn.exec_(statement.encode())
            if result.status != pq.ExecStatus.COPY_OUT:
                raise_result(result, doing=f"the snapshot of {facts.qualified_name}")
            rows = yield from _chunks(conn.pgconn, facts, batch_bytes)
        if rows == 0 and facts.estimated_rows > 0 and not facts.row_filter and not accept_empty:
            raise SnapshotRaced(
                f"{facts.qualified_name} read as empty, but has about {facts.estimated_rows} rows by its statistics"
            )


def _enter_snapshot(conn: psycopg.Connection[tuple[Any, ...]], snapshot: str) -> None:
    conn.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        conn.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}".encode())
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject):
        raise SnapshotRaced("the exported snapshot is gone: the connection that held it ended") from None


@contextmanager
def _of_the_table() -> Iterator[None]:
    """What the server refuses inside this block it refuses because of the table."""
    try:
        yield
    except SourceRefused as error:
        raise TableRefused(str(error), hint=error.hint) from error


def _lock(conn: psycopg.Connection[tuple[Any, ...]], facts: TableFacts) -> None:
    """ACCESS SHARE until the transaction ends, on the leaves of a partitioned table as well.

    By a query without rows: LOCK TABLE asks for a right to the whole table, where rights to the
    columns are enough to read them.
    """
    only = "" if facts.relkind == "p" else "ONLY "
    with translated(f"locking {facts.qualified_name} against changes of its shape"):
        try:
            conn.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'".encode())
            conn.execute(f"SELECT FROM {only}{quote_qualified(facts.schema, facts.name)} LIMIT 0".encode())
            conn.execute(b"SET LOCAL lock_timeout = 0")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise SnapshotRaced(
                f"{facts.qualified_name} was dropped or renamed while its snapshot was being taken"
            ) from None
        except psycopg.errors.LockNotAvailable:
            raise TableLocked(
                f"{facts.qualified_name} is locked by another session, which keeps it from being read"
            ) from None


def _compare(options: SourceOptions, facts: TableFacts) -> None:
    """With the lock held the table cannot change any more, so one look is enough; a session of its
    own, for ours sees the catalog of the snapshot's moment.
    """
    with closing(Catalog(open_query(options))) as catalog:
        now = catalog.table(facts.oid, publication=options.publication if facts.publishes else "")
    if now is None:
        raise SnapshotRaced(f"{facts.qualified_name} was dropped while its snapshot was being taken")
    if now.relfilenode != facts.relfilenode:
        raise SnapshotRaced(f"{facts.qualified_name} was rewritten or truncated while its snapshot was being taken")
    if (
        _shape(now) != _shape(facts)
        or now.published_columns != facts.published_columns
        or fingerprint(now) != fingerprint(facts)
    ):
        raise SnapshotRaced(
            f"{facts.qualified_name} or its place in the publication was altered while its snapshot was being taken"
        )


def _shape(facts: TableFacts) -> list[tuple[str, int, int, int]]:
    return [(column.name, column.attnum, column.type_oid, column.typmod) for column in facts.columns]


def _chunks(
    pgconn: pq.abc.PGconn, facts: TableFacts, batch_bytes: int
) -> Generator[list[bytes | memoryview], None, int]:
    """Returns the number of rows: the server sends one row in each CopyData message, the header
    with the first and the trailer alone.
    """
    pgconn.nonblocking = 1
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    get = pgconn.get_copy_data
    pause_s = 0 if pgconn.ssl_in_use else _COALESCE_S  # over TLS a read gives one record, however long one waits
    batch: list[bytes | memoryview] = []
    append = batch.append
    nbytes = messages = 0
    while True:
        size, chunk = get(1)
        if size > 0:
            append(bytes(chunk) if size < LARGE_PAYLOAD_BYTES else chunk)  # see the stream
            nbytes += size
            if nbytes >= batch_bytes:
                messages += len(batch)
                yield batch
                batch = []
                append = batch.append
                nbytes = 0
        elif size == 0:
            poll.poll()
            time.sleep(pause_s)
            pgconn.consume_input()
        else:
            break
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise_result(result, doing=f"the snapshot of {facts.qualified_name}")
    while pgconn.get_result() is not None:
        pass
    pgconn.nonblocking = 0
    messages += len(batch)
    if batch:
        yield batch
    return messages - 1
