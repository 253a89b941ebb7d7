"""Reading a table as of an exported snapshot, in the very values that the stream would send.

Invariant: what is yielded is every row that the snapshot sees, in the output of the same type
output functions under the same pinned settings or in a binary form of the same values, or an error.
A snapshot without a lock that races a rewrite or TRUNCATE reads nothing and says nothing, so the
table is locked and its storage is compared with what it was before the snapshot existed. Must not:
write, decode rows, or hold anything stronger than ACCESS SHARE. (PostgreSQL: COPY; SET TRANSACTION; Explicit Locking.)
"""

import select
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from io import BytesIO
from typing import Any

import psycopg
from psycopg import pq

from sluice import faults
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.chunks import ENDLESS, BlockRange
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import SourceRefused, TableUnavailable
from sluice.ingest.receive.batching import LARGE_PAYLOAD_BYTES
from sluice.printable import counted
from sluice.protocol.copy_rows import CopyPayloads
from sluice.quoting import quote_identifier, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.rule_sql import text_sent
from sluice.source.sessions import (
    GROW_BUFFER,
    Connection,
    KnownSource,
    StatementFailed,
    open_query,
    raise_result,
    translated,
)
from sluice.source.snapshot_export import HOLD_SECONDS, SnapshotGone, bound, enter_snapshot, living
from sluice.tables.catalog_diff import compare, fingerprint

BATCH_BYTES = 8 * 1024 * 1024
LOCK_WAIT_S = 2
"""Longer than ordinary statements hold a lock that excludes reading, and short enough for the
tables behind this one.
"""
_COALESCE_S = 0.001
"""Lets the socket fill between two reads, so that the server writes without waking us for every 8
KiB.
"""
_ALREADY_TEXT = frozenset((25, 1042, 1043, 1790))
"""text, char(n), varchar(n), refcursor: their binary form is their text form, padding included."""
_BINARY = frozenset(
    ["boolean", "int2", "int4", "int8", "oid", "float4", "float8", "bytea", "date", "timestamp", "timestamptz"]
)
"""Forms that cost the server less than their text and us no more, and give the same values."""


def binary_columns(schema: TableSchema) -> list[int]:
    """The columns, from 0, that COPY sends in binary form."""
    return [place for place, column in enumerate(schema.columns) if _in_binary(column)]


def _in_binary(column: ColumnSchema) -> bool:
    """A column rule needs the text."""
    return column.rule is None and column.binary_form in _BINARY


class SnapshotRaced(TableUnavailable):
    """The table was rewritten, truncated or changed around the moment of the snapshot: take a new
    snapshot and read again.
    """


class TableLater(TableUnavailable):
    """The table cannot be read now."""


class TableLocked(TableLater):
    """Somebody holds it in ACCESS EXCLUSIVE."""


class TableRefused(SourceRefused):
    """The server does not let this table be read, whereas the connection is as good as for any
    other.
    """


def copy_statement(schema: TableSchema, facts: TableFacts, blocks: BlockRange | None = None, where: str = "") -> str:
    """The COPY whose every field is the text that the stream would send for it, or of `binary_columns`
    the binary form of the same value, of the rows in `blocks` (None: all) for which the SQL condition
    `where` holds.

    Casting to text instead of calling the output function would differ: char(n) loses its padding,
    boolean is spelled out.
    """
    known = {column.name: column for column in facts.columns}
    fields = []
    for column in schema.columns:
        if column.name not in known:
            raise SnapshotRaced(f"{schema.qualified_name} no longer has the column {column.name}")
        plain = known[column.name].base_type_oid in _ALREADY_TEXT or _in_binary(column)
        fields.append(quote_identifier(column.name) if plain else text_sent(known[column.name]))
    conditions = [where] if where else []
    source = quote_qualified(facts.schema, facts.name)
    only = "" if facts.relkind == "p" else "ONLY "
    if blocks is not None:
        if blocks.relation != str(facts.oid):
            leaf = next((leaf for leaf in facts.children if str(leaf.oid) == blocks.relation), None)
            if leaf is None:
                raise SnapshotRaced(f"{schema.qualified_name} no longer has the partition {blocks.relation}")
            source, only = quote_qualified(leaf.schema, leaf.name), "ONLY "
        if blocks.first:
            conditions.append(f"ctid >= '({blocks.first},0)'::pg_catalog.tid")
        if blocks.end != ENDLESS:
            conditions.append(f"ctid < '({blocks.end},0)'::pg_catalog.tid")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"COPY (SELECT {', '.join(fields)} FROM {only}{source}{where}) TO STDOUT (FORMAT binary)"


class SnapshotSession:
    """Two sessions of one thread: one inside the exported `snapshot`, one that sees the catalog of now.
    They are opened when they are needed, and anew after an error.
    """

    def __init__(self, options: KnownSource, snapshot: str, *, hold_s: float | None = None) -> None:
        """With `hold_s` the server ends the first one when this process has stood still for so long."""
        self._options = options
        self._hold_s = hold_s
        self._snapshot = snapshot
        self._inside: Connection | None = None
        self._catalog: Catalog | None = None

    @property
    def inside(self) -> Connection:
        """The session that sees the rows of the snapshot. Raises SourceError, SnapshotRaced."""
        if self._inside is None:
            conn = open_query(self._options)
            try:
                if self._hold_s is not None:
                    bound(conn, self._hold_s)
                with translated("preparing a snapshot"):
                    enter_snapshot(conn, self._snapshot)
                    conn.pgconn.exec_(GROW_BUFFER)
            except SnapshotGone as gone:
                conn.close()
                raise SnapshotRaced(str(gone)) from None
            except BaseException:
                conn.close()
                raise
            self._inside = conn
        return self._inside

    def require_wanted(self) -> None:
        """Raises SourceUnavailable once nobody waits for the source any more."""
        self._options.cancellation.check()

    def close(self) -> None:
        """Ends both. May be called again, and the session be used again."""
        for session in (self._inside, self._catalog):
            if session is not None:
                session.close()
        self._inside = self._catalog = None

    @contextmanager
    def locked(self, tables: Sequence[TableFacts]) -> Iterator[dict[int, SnapshotRaced | TableLater | TableRefused]]:
        """Inside the block none of `tables` can change its shape or storage, but for those that are
        given, by oid, with what is wrong with them.

        `tables` must have been read *before* the slot that exported the snapshot was created: what is
        no longer the same is SnapshotRaced.
        """
        try:
            conn = self.inside
            faults.point("snapshot.lock.before")
            wrong: dict[int, SnapshotRaced | TableLater | TableRefused] = {}
            with translated("locking tables against changes of their shape"):
                conn.execute(b"SAVEPOINT tables")
                for facts in tables:
                    if (error := _lock(self, conn, facts)) is not None:
                        wrong[facts.oid] = error
                now = {one.oid: one for one in self._now([facts.oid for facts in tables if facts.oid not in wrong])}
                for facts in tables:
                    if facts.oid in now:
                        now[facts.oid] = _as_in_snapshot(conn, facts, now[facts.oid])
            for facts in tables:
                if facts.oid not in wrong and (raced := _raced(facts, now.get(facts.oid))) is not None:
                    wrong[facts.oid] = raced
            faults.point("snapshot.locked")
            yield wrong
            with translated("giving tables free"):
                conn.execute(b"ROLLBACK TO SAVEPOINT tables; RELEASE SAVEPOINT tables")
        except BaseException:
            self.close()
            raise

    def _now(self, oids: Sequence[int]) -> list[TableFacts]:
        """With the lock held a table cannot change any more, so one look is enough; by a session of its
        own, for the other one sees the catalog of the snapshot's moment.
        """
        if self._catalog is None:
            self._catalog = Catalog(open_query(self._options))
        return self._catalog.tables(oids, publication=self._options.publication)

    def blocks(self, tables: Sequence[TableFacts]) -> dict[str, int]:
        """How many blocks each table has, and each partition, by oid: of `tables`, which are locked.
        Partitions are given only where all of a table's can be read by themselves: the right to read a
        table holds for its partitions when they are read through it.
        """
        command = """
            SELECT c.oid::text, c.oid = ANY (%(tables)s::oid[]),
                pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::int8,
                (SELECT a.amname FROM pg_catalog.pg_am a WHERE a.oid = c.relam) IS NOT DISTINCT FROM 'heap'
                AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND NOT pg_catalog.row_security_active(c.oid)
            FROM pg_catalog.pg_class c WHERE c.oid = ANY (%(oids)s::oid[])"""
        leaves = {table.oid: [leaf.oid for leaf in table.children] for table in tables if table.relkind == "p"}
        plain = [table.oid for table in tables if table.relkind != "p"]
        oids = [*plain, *(oid for found in leaves.values() for oid in found)]
        with translated("asking for the size of tables"):
            rows = self.inside.execute(command.encode(), {"tables": plain, "oids": oids}).fetchall()
        sizes = {oid: size for oid, own, size, by_blocks in rows if own and by_blocks}
        cut = {oid: size for oid, own, size, by_blocks in rows if not own and by_blocks}
        for found in leaves.values():
            if all(str(oid) in cut for oid in found):
                sizes |= {str(oid): cut[str(oid)] for oid in found}
        return sizes


def read_rows(
    session: SnapshotSession,
    *,
    schema: TableSchema,
    facts: TableFacts,
    blocks: BlockRange | None = None,
    where: str = "",
    batch_bytes: int = BATCH_BYTES,
    accept_empty: bool = False,
) -> Iterator[CopyPayloads]:
    """Yields raw CopyData payloads of COPY's binary format; the first begins with its header, the
    last is its trailer. What is yielded is the caller's to empty. With `blocks` only the rows in them, with
    `where` only those for which the SQL condition holds. The table
    must be locked; a session that was left before the last row is closed.

    Raises SnapshotRaced when the table reads as empty although it has rows by the statistics (unless
    `accept_empty`, for a second try); TableRefused when it is this table that cannot be read, and TableLater when it
    cannot be read now; SourceError otherwise.
    """
    try:
        conditions = [f"({one})" for one in (Catalog(session.inside).row_filter(facts), where) if one]
        statement = copy_statement(schema, facts, blocks, " AND ".join(conditions))
        pgconn = session.inside.pgconn
        with _later(session), _of_the_table(), translated(f"the snapshot of {facts.qualified_name}"):
            result = pgconn.exec_(statement.encode())
            if result.status != pq.ExecStatus.COPY_OUT:
                raise_result(result, doing=f"the snapshot of {facts.qualified_name}")
            rows = yield from _chunks(pgconn, facts, batch_bytes)
    except BaseException:
        session.close()
        raise
    is_all = blocks is None or (blocks.is_whole and blocks.relation == str(facts.oid))
    if is_all and rows == 0 and facts.estimated_rows > 0 and not facts.row_filter and not accept_empty:
        raise SnapshotRaced(
            f"{facts.qualified_name} read as empty, but has about "
            f"{counted(facts.estimated_rows, 'row')} by its statistics"
        )


def read_table(
    options: KnownSource,
    *,
    schema: TableSchema,
    facts: TableFacts,
    snapshot: str,
    batch_bytes: int = BATCH_BYTES,
    accept_empty: bool = False,
) -> Iterator[CopyPayloads]:
    """`read_rows` of one whole table in a session of its own. Raises what is wrong with the table, too."""
    with closing(SnapshotSession(options, snapshot)) as session, session.locked([facts]) as wrong:
        if wrong:
            raise wrong[facts.oid]
        yield from read_rows(session, schema=schema, facts=facts, batch_bytes=batch_bytes, accept_empty=accept_empty)


@contextmanager
def table_at(
    options: KnownSource, *, facts: TableFacts, snapshot: str, hold_s: float = HOLD_SECONDS
) -> Iterator[Connection]:
    """A session that sees the source as of `snapshot`, and the table of `facts` locked in it. The server ends it when
    this process has stood still for `hold_s`. Raises what is wrong with the table.
    """
    with closing(SnapshotSession(options, snapshot, hold_s=hold_s)) as session, session.locked([facts]) as wrong:
        if wrong:
            raise wrong[facts.oid]
        with living(session.inside, hold_s):
            yield session.inside


@contextmanager
def _later(session: SnapshotSession) -> Iterator[None]:
    """What fails inside this block fails because of the table: a file that the server does not find, or memory that is
    short for a row, may be so for long.
    """
    try:
        yield
    except StatementFailed as error:
        session.require_wanted()
        raise TableLater(str(error), hint=error.hint) from error


@contextmanager
def _of_the_table() -> Iterator[None]:
    """What the server refuses inside this block it refuses because of the table."""
    try:
        yield
    except SourceRefused as error:
        raise TableRefused(str(error), hint=error.hint) from error


def _lock(
    session: SnapshotSession, conn: Connection, facts: TableFacts
) -> SnapshotRaced | TableLater | TableRefused | None:
    """ACCESS SHARE until the savepoint is rolled back, on the leaves of a partitioned table as well;
    what keeps the table from being locked, if anything does.

    By a query without rows: LOCK TABLE asks for a right to the whole table, where rights to the
    columns are enough to read them.
    """
    only = "" if facts.relkind == "p" else "ONLY "
    name = facts.qualified_name
    try:
        conn.execute(
            f"SAVEPOINT one; SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'; "
            f"SELECT FROM {only}{quote_qualified(facts.schema, facts.name)} LIMIT 0; "
            "SET LOCAL lock_timeout = 0; RELEASE SAVEPOINT one".encode()
        )
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        error: Any = SnapshotRaced(f"{name} was dropped or renamed while its snapshot was being taken")
    except psycopg.errors.LockNotAvailable:
        error = TableLocked(f"{name} is locked by another session, which keeps it from being read")
    except psycopg.Error:
        try:
            with _later(session), _of_the_table(), translated(f"locking {name} against changes of its shape"):
                raise
        except (TableLater, TableRefused) as said:
            error = said
    else:
        return None
    conn.execute(b"ROLLBACK TO SAVEPOINT one; RELEASE SAVEPOINT one")
    found: SnapshotRaced | TableLater | TableRefused = error
    return found


def _as_in_snapshot(conn: Connection, facts: TableFacts, now: TableFacts) -> TableFacts:
    """`now` without partitions that were created behind the snapshot of the session: the stream has all their rows. A
    table that gets one every hour, and takes longer to read, would never be read otherwise.
    """
    known = {leaf.oid for leaf in facts.children}
    later = [leaf.oid for leaf in now.children if leaf.oid not in known]
    if not later or compare(facts.relfilenode, fingerprint(facts), now) is not None:
        return now
    command = b"SELECT FROM pg_catalog.pg_class WHERE oid = ANY (%s::oid[])"
    return now if conn.execute(command, (later,)).fetchone() is not None else now.with_leaves(known)


def _raced(facts: TableFacts, now: TableFacts | None) -> SnapshotRaced | None:
    """What has happened to a table since its facts were read."""
    name = facts.qualified_name
    if now is None:
        return SnapshotRaced(f"{name} was dropped while its snapshot was being taken")
    if now.relfilenode != facts.relfilenode:
        return SnapshotRaced(f"{name} was rewritten or truncated while its snapshot was being taken")
    if (
        _shape(now) != _shape(facts)
        or now.published_columns != facts.published_columns
        or fingerprint(now) != fingerprint(facts)
    ):
        return SnapshotRaced(f"{name} or its place in the publication was altered while its snapshot was being taken")
    return None


def _shape(facts: TableFacts) -> list[tuple[str, int, int, int]]:
    return [(column.name, column.attnum, column.type_oid, column.typmod) for column in facts.columns]


def _chunks(pgconn: pq.abc.PGconn, facts: TableFacts, batch_bytes: int) -> Generator[CopyPayloads, None, int]:
    """Returns the number of rows: the server sends one row in each CopyData message, the header
    with the first and the trailer alone.

    Rows are copied into one buffer as they come: an object for each costs as much as all else in here.
    """
    pgconn.nonblocking = 1
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    get = pgconn.get_copy_data
    pause_s = 0 if pgconn.ssl_in_use else _COALESCE_S  # over TLS a read gives one record, however long one waits
    batch, buffer = CopyPayloads(), BytesIO()
    append, write = batch.sizes.append, buffer.write
    nbytes = messages = 0
    while True:
        size, chunk = get(1)
        if size > 0:
            append(size)
            if size < LARGE_PAYLOAD_BYTES:
                write(chunk)
            else:  # stays in the block that libpq made for it
                batch.chunks += (buffer.getvalue(), chunk)
                buffer = BytesIO()
                write = buffer.write
            nbytes += size
            if nbytes >= batch_bytes:
                messages += len(batch.sizes)
                full, batch, buffer = _closed(batch, buffer), CopyPayloads(), BytesIO()
                append, write = batch.sizes.append, buffer.write
                nbytes = 0
                del chunk  # a large one is the caller's to empty
                yield full
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
    messages += len(batch.sizes)
    if batch.sizes:
        yield _closed(batch, buffer)
    return messages - 1


def _closed(batch: CopyPayloads, buffer: BytesIO) -> CopyPayloads:
    batch.chunks.append(buffer.getvalue())
    return batch
