"""Tables that change, or cannot be read, while their snapshot is read: taken again, set aside by name, and
never in the way of the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice import faults, lsn
from sluice.contract.control import RESYNC
from sluice.ingest.options import FlushPolicy
from sluice.manifest.reader import read_entries
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState, TableState
from sluice.source.publication import ensure_publication
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline, Running
from tests.support.sources import fresh_database
from tools.local.postgres import temporary_server

LOOKS: dict[str, Any] = {"watch_interval_s": 0.2, "tables": (), "flush": FlushPolicy(0.05, progress_interval_s=0.5)}
"""The catalog is looked at often enough for a test; everything that is published is carried."""


def hold(pipeline: IngestPipeline, point: str) -> Path:
    """Holds each passage of a fault point until the returned file exists."""
    gate = pipeline.folder / f"{point}.open"
    faults.arm(f"{point}=hold:{gate}")
    return gate


@contextmanager
def held(pipeline: IngestPipeline, point: str, **changes: Any) -> Iterator[Running]:
    """Ingest that has come to `point` in the snapshot of public.a; goes on when the block ends, and
    until every table has left `snapshot`.
    """
    gate = hold(pipeline, point)
    with pipeline.running(**LOOKS | changes) as running:
        running.wait_until(lambda: faults.passages(point) > 0)
        yield running
        gate.touch()
        running.wait_until(lambda: not pipeline.states() & {"snapshot", "pending"})


def looked_again(running: Running) -> None:
    """Two more looks at the catalog have begun: one of them saw everything committed before."""
    for _ in range(2):
        before = running.status.catalog_beat
        running.wait_until(lambda: running.status.catalog_beat > before)  # noqa: B023


SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE a (id int PRIMARY KEY, k int DEFAULT 1, m mood DEFAULT 'sad')",
    "INSERT INTO a SELECT generate_series(1, 5)",
    "CREATE TABLE r (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE r1 PARTITION OF r FOR VALUES IN (1)",
    "CREATE TABLE apart (id int, k int, PRIMARY KEY (id, k))",
    "INSERT INTO r SELECT i, 1 FROM generate_series(1, 5) i",
    "INSERT INTO apart VALUES (6, 2), (7, 2), (8, 2)",
)
UNSEEN = {
    "an enum label renamed": ("a", ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",)),
    "left and came back": (
        "a",
        ("ALTER PUBLICATION {p} DROP TABLE a", "DELETE FROM a WHERE id = 1", "ALTER PUBLICATION {p} ADD TABLE a"),
    ),
    "a partition attached with its rows": ("r", ("ALTER TABLE r ATTACH PARTITION apart FOR VALUES IN (2)",)),
    "a column added with a rewrite": ("a", ("ALTER TABLE a ADD COLUMN drawn float8 DEFAULT random()",)),
}
CHANGES = cases(UNSEEN, quick=["a partition attached with its rows"])


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_event_shows_while_a_table_is_read_makes_the_snapshot_begin_again(
    pipeline: IngestPipeline, change: str
) -> None:
    table, statements = UNSEEN[change]
    pipeline.execute(*SETUP)
    pipeline.publish(table)
    with held(pipeline, "snapshot.taken") as running:
        pipeline.execute(*statements)
        looked_again(running)
    found = pipeline.table(f"public.{table}")
    assert (found.state, found.generation) == ("live", 2), found.reason
    assert pipeline.snapshot_rows(f"public.{table}") == pipeline.source_rows(table)


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_event_shows_between_the_last_look_and_the_entry_turns_the_table_stale(
    pipeline: IngestPipeline, change: str
) -> None:
    """The entry carries the facts that the snapshot began with, so that the next look compares with
    those. One that comes before the entry has the rows read again.
    """
    table, statements = UNSEEN[change]
    pipeline.execute(*SETUP)
    pipeline.publish(table)
    with held(pipeline, "snapshot.final.before", watch_interval_s=3600):
        pipeline.execute(*statements)
    pipeline.run(**LOOKS)
    state, name = pipeline.table(f"public.{table}").state, f"public.{table}"
    assert state == "stale" or pipeline.snapshot_rows(name) == pipeline.source_rows(table)


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_never_becomes_live_without_what_a_look_has_examined_meanwhile(
    pipeline: IngestPipeline, change: str
) -> None:
    """The catalog is compared before the last entry, which may wait for a long time for its turn or the store."""
    table, statements = UNSEEN[change]
    pipeline.execute(*SETUP)
    pipeline.publish(table)
    with held(pipeline, "snapshot.final.before") as running:
        pipeline.execute(*statements)
        changed_lsn = lsn.parse(pipeline.wal_end())
        running.wait_until(lambda: pipeline.state().examined_lsn >= changed_lsn)
    lives: list[TableState] = []
    state = PipelineState()
    for entry, sha256 in read_entries(pipeline.store, after_seq=0):
        state = reduce(state, entry, sha256)
        lives += [one for one in state.tables.values() if one.table_name == table and one.state == "live"]
    assert pipeline.table(f"public.{table}").state == "live"
    assert {one.fingerprint for one in lives} == {lives[-1].fingerprint}
    assert pipeline.snapshot_rows(f"public.{table}") == pipeline.source_rows(table)


@slow
def test_a_table_that_is_locked_is_read_after_the_others_and_says_what_it_waits_for(pipeline: IngestPipeline) -> None:
    """The lock is taken behind the snapshot, which would wait for older transactions."""
    pipeline.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"), "INSERT INTO b VALUES (1)")
    pipeline.publish("a", "b", "c")
    gate = hold(pipeline, "snapshot.lock.before")
    with pipeline.running(**LOOKS) as running, pipeline.database.connect() as holder:
        running.wait_until(lambda: faults.passages("snapshot.lock.before") > 0)
        with holder.transaction():
            holder.execute("LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
            gate.touch()
            running.wait_until(lambda: pipeline.table("public.c").state == "live")
            waits = pipeline.table("public.b")
            assert (waits.state, "locked by another session" in waits.reason) == ("snapshot", True), waits.reason
            said = running.status.snapshots.waits
            running.wait_until(lambda: [one.reason for one in said.now()] == ["locks of other sessions on public.b"])
            assert all(one.retry_at for one in said.now())
        running.wait_until(lambda: pipeline.table("public.b").state == "live")
        running.wait_until(lambda: not said.now())
        assert pipeline.table("public.b").reason == ""
    assert pipeline.snapshot_rows("public.b") == {("1",)}


def test_a_table_whose_file_the_server_does_not_find_keeps_no_other_from_being_read(pipeline: IngestPipeline) -> None:
    """An error that may pass, and may last: of the table, and not of the connection."""
    pipeline.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"), "INSERT INTO b VALUES (1)")
    pipeline.publish("a", "b", "c")
    pipeline.execute("CHECKPOINT")
    file = pipeline.database.server.data_dir / str(pipeline.database.one("SELECT pg_relation_filepath('b')")[0])
    aside = file.rename(file.with_name(f"{file.name}.aside"))
    try:
        with pipeline.running(**LOOKS) as running:
            running.wait_until(
                lambda: (
                    {one.table_name for one in pipeline.state().tables.values() if one.state == "live"} == {"a", "c"}
                )
            )
            waits = pipeline.table("public.b")
            assert (waits.state, "58P01" in waits.reason) == ("snapshot", True), waits.reason
            assert not running.status.snapshots.waits.now()
            aside.rename(file)
            running.wait_until_live()
    finally:
        if aside.exists():
            aside.rename(file)
    assert pipeline.snapshot_rows("public.b") == {("1",)}


def test_a_locked_table_does_not_keep_an_existing_publication_from_being_looked_at(pipeline: IngestPipeline) -> None:
    """The first start asks whether the publication has all that source.tables names; the lock
    outlasts the question.
    """
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    pipeline.publish("a", "b")
    with pipeline.database.connect() as holder, pipeline.database.connect() as asking, holder.transaction():
        holder.execute("LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
        asking.execute("SET lock_timeout = '2s'")
        assert not ensure_publication(asking, pipeline.database.publication, [("public", "a"), ("public", "b")]).created


@slow
def test_a_table_that_goes_stale_while_its_snapshot_is_published_is_read_again_when_asked(
    pipeline: IngestPipeline,
) -> None:
    """Neither the snapshot of the older generation is published, nor does anything end."""
    pipeline.execute(*SETUP)
    pipeline.publish("a")
    with held(pipeline, "snapshot.final.before") as running:
        pipeline.execute("ALTER TABLE a ALTER COLUMN k TYPE text USING 'k'", "INSERT INTO a VALUES (20)")
        running.wait_until(lambda: pipeline.table("public.a").state == "stale")
        pipeline.request(RESYNC, table="a")
        running.wait_until(lambda: pipeline.table("public.a").generation > 1)
    pipeline.run(**LOOKS)
    assert pipeline.table("public.a").state == "live"
    assert pipeline.snapshot_rows("public.a") == pipeline.source_rows("a")


def test_snapshots_that_the_server_has_no_slot_for_are_failing_for_who_looks_from_outside(tmp_path: Path) -> None:
    with temporary_server(settings={"max_replication_slots": "2"}) as server, fresh_database(server) as database:
        pipeline = IngestPipeline.local(database, tmp_path)
        database.execute("CREATE TABLE a (id int PRIMARY KEY)", "SELECT pg_create_physical_replication_slot('other')")
        pipeline.publish("a")
        reporter = pipeline.reporter(pipeline.options().source)
        with pipeline.running(**LOOKS) as running:
            running.wait_until(
                lambda: any("max_replication_slots" in table.reason for table in pipeline.state().tables.values())
            )
            assert "table.failing" in {problem.code for problem in reporter.take().verdict.problems}
            said = running.status.snapshots.waits
            running.wait_until(lambda: any(one.retry_at and "slot" in one.reason for one in said.now()))
            database.execute("SELECT pg_drop_replication_slot('other')")
            running.wait_until(lambda: pipeline.table("public.a").state == "live")
            running.wait_until(lambda: not said.now())
        assert pipeline.table("public.a").reason == ""
