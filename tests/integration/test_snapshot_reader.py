"""The snapshot and the stream spell every value that is sent as text in the same bytes, and a snapshot that races DDL
says so.
"""

import asyncio
import struct
import threading
from collections.abc import Generator
from contextlib import closing
from typing import Any, cast

import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import SourceRefused, SourceUnavailable
from sluice.ingest.snapshot.reader import SnapshotRaced, binary_columns, read_table
from sluice.source.catalog import Catalog
from sluice.source.publication import ensure_publication
from sluice.source.sessions import KnownSource, SourceOptions, open_query
from sluice.source.slot import ensure_slot
from sluice.source.snapshot_export import SnapshotHolder, Waiting
from sluice.tables.schemas import build_schema, relation_of
from tests.support import type_matrix
from tests.support.least_rights import pipeline_role
from tests.support.pipeline import wait_until
from tests.support.source_setup import known, options_of, since
from tests.support.sources import Database
from tests.support.streaming import opened

Row = tuple[bytes | None, ...]


def facts_of(options: SourceOptions) -> TableFacts:
    with closing(open_query(options)) as conn:
        (facts,) = Catalog(conn).published_tables(options.publication)
    return facts


def schema_of(facts: TableFacts) -> TableSchema:
    return build_schema(relation_of(facts), facts, None, 1)


def read_in(options: KnownSource, facts: TableFacts, snapshot: str) -> list[Row]:
    """The rows of a snapshot, read by a parser of this test's own; integers as text."""
    columns = schema_of(facts).columns
    payload = b"".join(
        b"".join(batch.chunks) for batch in read_table(options, schema=schema_of(facts), facts=facts, snapshot=snapshot)
    )
    assert payload[:11] == b"PGCOPY\n\xff\r\n\0"
    position = 19
    rows: list[Any] = []
    while True:
        (count,) = struct.unpack_from(">h", payload, position)
        position += 2
        if count == -1:
            assert position == len(payload)
            return sorted(rows, key=lambda row: int(row[0] or b"0"))
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", payload, position)
            position += 4
            row.append(payload[position : position + length] if length >= 0 else None)
            position += max(length, 0)
        rows.append(tuple(map(_text_of_integers, columns, row)))


def _text_of_integers(column: ColumnSchema, field: bytes | None) -> bytes | None:
    if field is None or column.binary_form not in ("int2", "int4", "int8"):
        return field
    return str(int.from_bytes(field, "big", signed=True)).encode()


def streamed_rows(frames: list[bytes]) -> list[Row]:
    rows = []
    for frame in frames:
        if frame[0:1] != b"w" or frame[25:26] != b"I":
            continue
        position = 25 + 1 + 4 + 1
        (count,) = struct.unpack_from(">H", frame, position)
        position += 2
        row: list[bytes | None] = []
        for _ in range(count):
            kind = frame[position : position + 1]
            position += 1
            if kind == b"n":
                row.append(None)
                continue
            assert kind == b"t"
            (length,) = struct.unpack_from(">i", frame, position)
            row.append(frame[position + 4 : position + 4 + length])
            position += 4 + length
        rows.append(tuple(row))
    return rows


async def streamed(options: SourceOptions, start_lsn: int) -> list[Row]:
    stream = await opened(options, start_lsn)
    frames: list[bytes | memoryview] = []
    async with asyncio.timeout(20):
        while sum(frame[25:26] == b"C" for frame in frames) < type_matrix.ROW_COUNT:
            frames += [bytes(frame) for frame in (await stream.next_batch()).frames]
    await stream.close()
    return streamed_rows([bytes(frame) for frame in frames])


def test_snapshot_and_stream_send_the_same_bytes_for_every_type_that_is_sent_as_text(database: Database) -> None:
    options = known(options_of(database))
    database.execute(*type_matrix.DEFINITIONS, "CREATE TABLE public.mood_holder (m mood)", type_matrix.create_table())
    with database.connect() as connection:
        ensure_publication(connection, options.publication, [(type_matrix.SCHEMA, type_matrix.NAME)])
    slot = ensure_slot(options)
    database.execute(*type_matrix.inserts())
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        initial = read_in(options, facts, holder.snapshot_name)
    stream = asyncio.run(streamed(options, slot.confirmed_flush_lsn or 0))
    assert len(initial) == len(stream) == type_matrix.ROW_COUNT
    for from_snapshot, from_stream in zip(initial, stream, strict=True):
        pairs = zip(schema_of(facts).columns, from_snapshot, from_stream, strict=True)
        for place, (column, one, other) in enumerate(pairs):
            assert one == other or place in binary_columns(schema_of(facts)), column.type_name
    first = dict(zip((column.type_name for column in schema_of(facts).columns), initial[0], strict=True))
    assert (first["character(8)"], first["money"]) == (b"pad     ", b"$12.34")
    assert initial[-1][1:] == (None,) * len(type_matrix.COLUMNS)


def published(
    database: Database, *statements: str, tables: tuple[tuple[str, str], ...] = (("public", "t"),)
) -> KnownSource:
    options = known(options_of(database))
    database.execute(*statements)
    with database.connect() as connection:
        ensure_publication(connection, options.publication, tables)
    return options


@pytest.mark.parametrize(
    "race",
    [
        "TRUNCATE t",
        "ALTER TABLE t ALTER body TYPE text USING upper(body)",
        "VACUUM FULL t",
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE t DROP body",
        "ALTER TABLE t ADD extra int DEFAULT 7",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    ],
)
def test_a_table_that_changed_around_the_snapshot_is_never_taken_for_an_empty_one(
    database: Database, race: str
) -> None:
    options = published(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i",
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        database.execute(race)
        with pytest.raises(SnapshotRaced, match=r"public\.t"):
            list(read_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))


def test_a_snapshot_whose_holder_is_gone_is_a_race_and_not_a_snapshot(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")
    facts = facts_of(options)
    holder = SnapshotHolder.open(options)
    holder.close()
    assert not holder.alive()
    # The snapshot is there until the server has ended the session.
    others = b"SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with database.connect() as connection:
        for _ in range(200):
            if connection.execute(others).fetchone() is None:
                break
            threading.Event().wait(0.05)
    with pytest.raises(SnapshotRaced, match="snapshot is gone"):
        list(read_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))


def test_an_empty_reading_of_a_table_with_rows_is_doubted_once(database: Database) -> None:
    options = published(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(1, 100)",
        "ANALYZE t",
        "DELETE FROM t",
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        with pytest.raises(SnapshotRaced, match="empty"):
            list(read_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))
        assert list(
            read_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name, accept_empty=True)
        )


def test_a_partitioned_table_is_read_through_its_root_without_inheritance_children(
    database: Database,
) -> None:
    options = published(
        database,
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1), (11)",
        tables=(("public", "p"),),
    )
    facts = facts_of(options)
    assert facts.relkind == "p"
    with closing(SnapshotHolder.open(options)) as holder:
        assert read_in(options, facts, holder.snapshot_name) == [(b"1",), (b"11",)]
        database.execute("TRUNCATE p2")
        with pytest.raises(SnapshotRaced):
            read_in(options, facts, holder.snapshot_name)


def test_only_rows_that_pass_the_publications_filter_are_read_and_no_childrens_rows(
    database: Database,
) -> None:
    since(database, 15, "row filters")
    options = known(options_of(database))
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, kind text)",
        "CREATE TABLE child () INHERITS (t)",
        "INSERT INTO t VALUES (1, 'in'), (2, 'out')",
        "INSERT INTO child VALUES (3, 'in')",
        f"CREATE PUBLICATION {options.publication} FOR TABLE ONLY t WHERE (id = 1 OR id = 3)",
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        assert read_in(options, facts, holder.snapshot_name) == [(b"1", b"in")]


def test_row_level_security_stops_the_snapshot_instead_of_hiding_rows(database: Database) -> None:
    published(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with pipeline_role(database) as role:
        database.execute(
            f"CREATE ROLE {role} LOGIN REPLICATION",
            f"GRANT SELECT ON t TO {role}",
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY one_row ON t USING (id = 1)",
        )
        reader = known(options_of(database, user=role))
        facts = facts_of(reader)
        with closing(SnapshotHolder.open(reader)) as holder, pytest.raises(SourceRefused, match="42501"):
            list(read_table(reader, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name))


def test_a_snapshot_abandoned_half_way_leaves_no_session_behind(database: Database) -> None:
    options = published(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "INSERT INTO t SELECT i, repeat('x', 999) FROM generate_series(1, 9999) i",
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        rows = read_table(
            options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name, batch_bytes=64 * 1024
        )
        assert next(rows)
        cast("Generator[Any, None, None]", rows).close()
    database.execute("ALTER TABLE t ADD COLUMN locked_no_more int")


def test_a_snapshot_that_waits_names_whom_it_waits_for_and_can_be_cancelled(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")
    reported: list[int | None] = []
    with database.connect() as blocking:
        blocking.execute("BEGIN")
        blocking.execute("INSERT INTO t VALUES (1)")
        waiting = Waiting(
            report=lambda blockers: reported.extend(blocker.pid for blocker in blockers),
            cancelled=lambda: bool(reported),
        )
        with pytest.raises(SourceUnavailable, match="cancelled"):
            SnapshotHolder.open(options, waiting=waiting)
        assert blocking.info.backend_pid in reported
        blocking.execute("ROLLBACK")
    with database.connect() as connection:
        leftover = connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT active"
        ).fetchone()
    assert leftover == (0,)


def test_a_snapshot_that_is_held_keeps_no_wal_and_is_the_one_of_the_slot(database: Database) -> None:
    options = published(
        database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "INSERT INTO t VALUES (1, 'before')"
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder, database.connect() as connection:
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        # The server drops it when the session that made it has ended, which nobody waits for.
        wait_until(lambda: connection.execute(slots).fetchone() == (0,), what="the slot is gone")
        database.execute("INSERT INTO t VALUES (2, 'after')", "DELETE FROM t WHERE id = 1")
        assert read_in(options, facts, holder.snapshot_name) == [(b"1", b"before")]
