"""Prepared transactions: durable before their PREPARE is acknowledged, visible at COMMIT PREPARED,
never before and never twice.
"""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sluice import lsn
from sluice.contract.entries import Prepared
from sluice.errors import SlotLost
from sluice.ingest.encode.builder import BuilderLimits
from sluice.operate.setup import prepare
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since
from tests.support.sources import Database
from tools.local.postgres import temporary_server

WAYS: dict[str, dict[str, Any]] = {
    "whole": {"streaming": "off"},
    "streamed": {"streaming": "auto"},
    "streamed, stored at once": {"streaming": "auto", "builder": BuilderLimits(body_bytes=1)},
}


@pytest.fixture(autouse=True)
def decoding_at_prepare(database: Database) -> None:
    """14 refuses it by name, see test_source_slot."""
    since(database, 15, "decoding at PREPARE")


@pytest.fixture(params=cases(WAYS, quick=["streamed, stored at once" if STREAMS_SOON else "whole"]))
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**WAYS[request.param], "two_phase": True}


@pytest.fixture
def kept(pipeline: IngestPipeline, way: dict[str, Any]) -> IngestPipeline:
    """A pipeline with one table whose snapshot is in the manifest, on a slot that decodes at PREPARE."""
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)", **way)
    if way["streaming"] != "off":
        since(pipeline.database, 16, "streaming of small transactions")
        pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    return pipeline


def prepared_at(database: Database, gid: str, *statements: str) -> int:
    """Prepares a transaction of these statements and returns a position behind it."""
    database.transact(*statements, end=f"PREPARE TRANSACTION '{gid}'")
    return lsn.parse(database.one("SELECT pg_current_wal_insert_lsn()")[0])


def ids(pipeline: IngestPipeline) -> list[int]:
    return [row["id"] for row in pipeline.rows("public.a")]


def still_open(pipeline: IngestPipeline) -> list[Prepared]:
    return list(pipeline.state().prepared.values())


def test_prepared_rows_are_durable_once_acknowledged_and_visible_once_committed(
    kept: IngestPipeline, way: dict[str, Any]
) -> None:
    position = prepared_at(kept.database, "one", "INSERT INTO a VALUES (1, 'x'), (2, 'y')")
    kept.run(**way)
    (waiting,) = still_open(kept)
    assert (waiting.gid, waiting.rows) == ("one", 2)
    assert sum(part.segment.rows for part in waiting.parts) == 2
    assert all(kept.store.size(part.segment.key) == part.segment.bytes for part in waiting.parts)
    assert kept.confirmed() >= position
    assert ids(kept) == []
    kept.run("INSERT INTO a VALUES (3, 'z')", "COMMIT PREPARED 'one'", **way)
    assert still_open(kept) == []
    assert ids(kept) == [3, 1, 2]
    kept.run(**way)
    assert ids(kept) == [3, 1, 2]


def test_a_transaction_that_is_prepared_and_committed_within_one_entry_is_an_ordinary_one(
    kept: IngestPipeline, way: dict[str, Any]
) -> None:
    prepared_at(kept.database, "quick", "INSERT INTO a VALUES (1, 'x')")
    kept.run("COMMIT PREPARED 'quick'", **way)
    assert ids(kept) == [1]
    assert not any(change.prepared or change.ended for change in kept.changes())


@slow
def test_a_gid_may_be_used_again(kept: IngestPipeline, way: dict[str, Any]) -> None:
    for number, (stored, ends) in enumerate(product([True, False], ["ROLLBACK", "COMMIT"])):
        prepared_at(kept.database, "same", f"INSERT INTO a VALUES ({number}, 'x')")
        if stored:
            kept.run(**way)
        kept.execute(f"{ends} PREPARED 'same'")
    kept.run(**way)
    assert (still_open(kept), ids(kept)) == ([], [1, 3])


@slow
def test_rows_behind_another_identity_that_a_prepared_transaction_announced_are_in_an_entry_of_their_own(
    kept: IngestPipeline, way: dict[str, Any]
) -> None:
    kept.execute("INSERT INTO a VALUES (1, 'x')")
    kept.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    prepared_at(kept.database, "one", "INSERT INTO a VALUES (2, 'y')")
    kept.run("INSERT INTO a VALUES (3, 'z')", **way)
    kept.run("COMMIT PREPARED 'one'", **way)
    versions = [{segment.schema_version for segment in change.segments} for change in kept.changes()]
    assert [found for found in versions if found] == [{1}, {2}, {2}]
    assert ids(kept) == [1, 3, 2]


@slow
def test_an_empty_prepared_transaction_is_no_problem(kept: IngestPipeline, way: dict[str, Any]) -> None:
    kept.execute("CREATE TABLE unpublished (id int)")
    kept.execute(f"ALTER PUBLICATION {kept.database.publication} SET TABLE a")
    prepared_at(kept.database, "empty", "INSERT INTO unpublished VALUES (1)")
    kept.run(**way)
    prepared_at(kept.database, "empty too", "INSERT INTO unpublished VALUES (1)")
    kept.run("COMMIT PREPARED 'empty'", "ROLLBACK PREPARED 'empty too'", "INSERT INTO a VALUES (1, 'x')", **way)
    assert (still_open(kept), ids(kept)) == ([], [1])


def test_the_same_log_prepared_and_not_gives_the_same_rows(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)", "CREATE TABLE b (id int PRIMARY KEY)", two_phase=True)
    plain = IngestPipeline.local(replace(database, slot=f"{database.slot}_plain"), pipeline.folder / "plain")
    pipeline.run(f"SELECT pg_create_logical_replication_slot('{plain.database.slot}', 'pgoutput')", two_phase=True)
    for key in pipeline.store.list(""):
        plain.store.put(key, pipeline.store.get(key))
    prepared_at(database, "one", "INSERT INTO a VALUES (1, 'x')", "UPDATE a SET t = 'y' WHERE id = 1")
    database.execute("INSERT INTO a VALUES (2, 'z')")
    prepared_at(
        database,
        "two",
        "INSERT INTO b VALUES (3)",
        "TRUNCATE b",
        "INSERT INTO b VALUES (4)",
        "INSERT INTO a VALUES (4, 'x')",
    )
    pipeline.run("COMMIT PREPARED 'two'", "INSERT INTO a VALUES (5, 'z')", "COMMIT PREPARED 'one'", two_phase=True)
    plain.run()
    assert pipeline.commits() == plain.commits()
    for table in ("public.a", "public.b"):
        rows = [[row | {"_sluice_xid": 0} for row in one.rows(table)] for one in (pipeline, plain)]
        assert rows[0] == rows[1]


@slow
def test_turning_it_on_late_loses_nothing_that_was_prepared_before(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)")
    prepared_at(database, "early", "INSERT INTO a VALUES (1, 'x')")
    pipeline.run("INSERT INTO a VALUES (2, 'x')")
    assert ids(pipeline) == [2]
    with pytest.raises(SlotLost, match="TWO_PHASE"):
        pipeline.run(two_phase=True)
    assert prepare(pipeline.options(two_phase=True), pipeline.store, dry_run=True)[1].statement
    assert prepare(pipeline.options(two_phase=True), pipeline.store, dry_run=False)[1].statement
    assert not prepare(pipeline.options(two_phase=True), pipeline.store, dry_run=False)[1].statement
    prepared_at(database, "late", "INSERT INTO a VALUES (3, 'x')")
    pipeline.run(two_phase=True)
    assert [one.gid for one in still_open(pipeline)] == ["late"]
    pipeline.run("COMMIT PREPARED 'early'", "COMMIT PREPARED 'late'", two_phase=True)
    assert (still_open(pipeline), ids(pipeline)) == ([], [2, 1, 3])


def test_turning_it_off_loses_nothing_that_is_prepared(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    since(database, 18, "turning two_phase off")
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)", two_phase=True)
    prepared_at(database, "open", "INSERT INTO a VALUES (1, 'x')")
    pipeline.run(two_phase=True)
    assert len(still_open(pipeline)) == 1
    assert prepare(pipeline.options(), pipeline.store, dry_run=False)[1].statement
    pipeline.run()
    assert (still_open(pipeline), ids(pipeline)) == ([], [])
    pipeline.run("COMMIT PREPARED 'open'")
    assert ids(pipeline) == [1]


def test_a_snapshot_that_begins_while_a_transaction_is_prepared_has_its_rows_once(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY, t text)", "CREATE TABLE b (id int PRIMARY KEY)")
    pipeline.run(two_phase=True, tables=("public.a",))
    with pipeline.running(two_phase=True, watch_interval_s=0.2) as running:
        prepared_at(database, "waits", "INSERT INTO b VALUES (1)")
        database.execute(f"ALTER PUBLICATION {database.publication} ADD TABLE b")
        running.wait_until(lambda: any(table.table_name == "b" for table in pipeline.state().tables.values()))
        database.execute("INSERT INTO b VALUES (2)", "COMMIT PREPARED 'waits'")
        running.wait_until(lambda: pipeline.table("public.b").state == "live")
    pipeline.run(two_phase=True)
    assert pipeline.ids("public.b") == [1, 2]


def test_a_connection_lost_between_prepare_and_commit_changes_nothing(
    kept: IngestPipeline, way: dict[str, Any]
) -> None:
    with kept.running(**way) as running:
        prepared_at(kept.database, "cut", "INSERT INTO a VALUES (1, 'x')")
        running.wait_until(lambda: len(still_open(kept)) == 1)
        kept.database.cut_stream()
        kept.execute("COMMIT PREPARED 'cut'")
        running.wait_until(lambda: ids(kept) == [1])
    assert still_open(kept) == []


@slow
@pytest.mark.parametrize("ingest_goes_on", [False, True], ids=["ingest starts again too", "ingest goes on"])
def test_a_server_that_crashes_between_prepare_and_commit_loses_and_repeats_nothing(
    tmp_path: Path, ingest_goes_on: bool
) -> None:
    with temporary_server(durable=True) as server:
        database = Database(server, "postgres", "sluice_prepared", "sluice_prepared")
        pipeline = IngestPipeline.local(database, tmp_path)
        pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)", two_phase=True)
        with pipeline.running(two_phase=True) if ingest_goes_on else nullcontext() as running:
            for gid, number in (("kept", 1), ("gone", 2)):
                prepared_at(database, gid, f"INSERT INTO a VALUES ({number}, 'x')")
            if running is not None:
                running.wait_until(lambda: len(still_open(pipeline)) == 2)
            else:
                pipeline.run(two_phase=True)
            server.crash()
            server.start()
            database.execute("COMMIT PREPARED 'kept'", "ROLLBACK PREPARED 'gone'")
            if running is not None:
                running.wait_until(lambda: not still_open(pipeline))
        pipeline.run(two_phase=True)
        assert (still_open(pipeline), ids(pipeline)) == ([], [1])
