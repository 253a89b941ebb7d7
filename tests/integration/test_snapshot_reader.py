"""A snapshot has the rows that it is of and no others, and one that races DDL says so."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import psycopg
import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import TableSchema
from sluice.errors import SourceRefused, SourceUnavailable
from sluice.ingest.snapshot.reader import SnapshotRaced, binary_columns, read_table, table_at
from sluice.protocol.copy_rows import CopyPayloads, CopyRows
from sluice.source import snapshot_export
from sluice.source.catalog import Catalog
from sluice.source.publication import ensure_publication
from sluice.source.sessions import Connection, KnownSource, SourceOptions, open_query
from sluice.source.snapshot_export import CreatedSlot, SnapshotHolder, Waiting, create_slot
from sluice.tables.schemas import build_schema, relation_of
from tests.support.least_rights import pipeline_role
from tests.support.pipeline import wait_until
from tests.support.source_setup import known, options_of, since
from tests.support.sources import Database


def all_facts(options: SourceOptions) -> list[TableFacts]:
    with closing(open_query(options)) as conn:
        return Catalog(conn).published_tables(options.publication)


def facts_of(options: SourceOptions) -> TableFacts:
    (facts,) = all_facts(options)
    return facts


def schema_of(facts: TableFacts) -> TableSchema:
    return build_schema(relation_of(facts), facts, None, 1)


def read(options: KnownSource, facts: TableFacts, holder: SnapshotHolder, **more: Any) -> Iterator[CopyPayloads]:
    return read_table(options, schema=schema_of(facts), facts=facts, snapshot=holder.snapshot_name, **more)


def rows_in(options: KnownSource, facts: TableFacts, holder: SnapshotHolder) -> list[list[Any]]:
    """What a snapshot has, without NULLs; a column `id` as a number."""
    reader = CopyRows(len(facts.columns), binary_columns(schema_of(facts)))
    found: list[list[Any]] = []
    for batch in read(options, facts, holder):
        rows = reader.feed(batch.chunks, sizes=batch.sizes)
        for row in range(len(rows)):
            at = [slice(int(field.start[row]), int(field.start[row]) + int(field.length[row])) for field in rows.new]
            number, *others = (bytes(rows.table.raw[part]) for part in at)
            found.append([int.from_bytes(number, "big"), *others])
    reader.close()
    return sorted(found)


def published(
    database: Database, *statements: str, tables: Sequence[tuple[str, str]] = (("public", "t"),)
) -> KnownSource:
    options = known(options_of(database))
    database.execute(*statements)
    with database.connect() as connection:
        ensure_publication(connection, options.publication, tables)
    return options


RACES = (
    "TRUNCATE {t}",
    "ALTER TABLE {t} ALTER body TYPE text USING upper(body)",
    "VACUUM FULL {t}",
    "DROP TABLE {t}",
    "ALTER TABLE {t} RENAME TO u",
    "ALTER TABLE {t} DROP body",
    "ALTER TABLE {t} ADD extra int DEFAULT 7",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
)


def test_a_table_that_changed_around_the_snapshot_is_never_taken_for_an_empty_one(database: Database) -> None:
    tables = {f"t{number}": race for number, race in enumerate(RACES)}
    options = published(
        database,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, body text)" for name in tables),
        *(f"INSERT INTO {name} SELECT i, 'x' FROM generate_series(1, 100) i" for name in tables),
        tables=[("public", name) for name in tables],
    )
    found = all_facts(options)
    with closing(SnapshotHolder.open(options)) as holder:
        for facts in found:
            race = tables[facts.name].format(t=facts.name)
            database.execute(race)
            with pytest.raises(SnapshotRaced, match=rf"public\.{facts.name}"):
                list(read(options, facts, holder))
    assert len(found) == len(tables)


def test_a_snapshot_whose_holder_is_gone_is_a_race_and_not_a_snapshot(database: Database) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")
    facts = facts_of(options)
    holder = SnapshotHolder.open(options)
    holder.close()
    # The snapshot is there until the server has ended the session.
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    wait_until(lambda: database.one(others) == (0,), what="the session has ended")
    with pytest.raises(SnapshotRaced, match="snapshot is gone"):
        list(read(options, facts, holder))


def test_a_snapshot_whose_exporter_ends_before_it_is_taken_over_is_taken_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")

    def cut(connection: Connection, *given: Any, **more: Any) -> CreatedSlot:
        made = create_slot(connection, *given, **more)
        assert database.one(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)") == (True,)
        return made

    monkeypatch.setattr(snapshot_export, "create_slot", cut)
    with pytest.raises(SourceUnavailable, match="the exported snapshot is gone"):
        SnapshotHolder.open(options)


def test_a_table_that_is_compared_is_let_go_of_when_the_process_stands_still(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison waits long for the lake, and one that was suspended on a terminal would keep others from altering
    the table.
    """
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")

    def waits() -> None:
        with (
            closing(SnapshotHolder.open(options)) as holder,
            table_at(options, facts=facts_of(options), snapshot=holder.snapshot_name, hold_s=0.4) as connection,
        ):
            time.sleep(1.2)
            assert connection.execute("SELECT count(*) FROM public.t").fetchone() == (0,)

    waits()
    monkeypatch.setattr(snapshot_export, "_live", lambda *_: None)
    with pytest.raises(psycopg.Error):
        waits()


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
            list(read(options, facts, holder))
        assert list(read(options, facts, holder, accept_empty=True))


def test_only_rows_that_pass_the_publications_filter_are_read_and_no_childrens_rows(database: Database) -> None:
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
        assert rows_in(options, facts, holder) == [[1, b"in"]]


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
            list(read(reader, facts, holder))


def test_a_snapshot_abandoned_half_way_leaves_no_session_behind(database: Database) -> None:
    options = published(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "INSERT INTO t SELECT i, repeat('x', 999) FROM generate_series(1, 9999) i",
    )
    facts = facts_of(options)
    with closing(SnapshotHolder.open(options)) as holder:
        rows = read(options, facts, holder, batch_bytes=64 * 1024)
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
    unused = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT active"
    assert database.one(unused) == (0,)


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
        assert rows_in(options, facts, holder) == [[1, b"before"]]


def test_a_snapshot_may_be_held_for_longer_than_a_setting_of_the_server_has_milliseconds(database: Database) -> None:
    """As many connections at few rows per second ask for, or a `snapshot_hold` of a month."""
    options = published(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with closing(SnapshotHolder.open(options, hold_s=30 * 86400.0)) as holder:
        assert rows_in(options, facts_of(options), holder) == []
