"""Start, loss, takeover and change of shape: what continues, what stops by name, and what turns one
table stale.
"""

import asyncio
import dataclasses
import threading

import pytest

from sluice.contract.entries import Changes, Snapshot
from sluice.contract.keys import MANIFEST
from sluice.errors import Interrupted, ServiceError, SlotBusy, SlotLost, WriterFenced
from sluice.ingest.supervisor import Ingest
from tests.support.ingesting import IngestPipeline


def test_rows_that_were_there_join_the_stream_without_gap_or_overlap(pipeline: IngestPipeline) -> None:
    """A writer storms while the snapshot is read; it and the later changes together are every row
    exactly once.
    """
    pipeline.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a SELECT i, 0 FROM generate_series(1, 2000) i"
    )
    storming = threading.Event()
    inserted: list[int] = []

    def storm() -> None:
        with pipeline.database.connect() as connection:
            number = 10_000
            while not storming.is_set():
                connection.execute("INSERT INTO a VALUES (%s, 1)", (number,))
                inserted.append(number)
                number += 1

    writer = threading.Thread(target=storm)
    writer.start()
    try:
        pipeline.run()
    finally:
        storming.set()
        writer.join()
    pipeline.run()
    (snapshot,) = [entry.body for entry in pipeline.entries() if isinstance(entry.body, Snapshot)]
    initial = [row["id"] for row in pipeline.rows("public.a", snapshot=True)]
    streamed = [row["id"] for row in pipeline.rows("public.a") if row["_sluice_lsn"] > snapshot.snapshot_lsn]
    assert sorted(initial + streamed) == [*range(1, 2001), *inserted]


def test_a_table_that_joins_later_is_read_and_followed(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    pipeline.database.execute(
        "CREATE TABLE later (id int PRIMARY KEY)",
        "INSERT INTO later VALUES (1), (2)",
        f"ALTER PUBLICATION {pipeline.database.publication} ADD TABLE later",
        "INSERT INTO later VALUES (3)",
    )
    pipeline.run()
    table = pipeline.table("public.later")
    assert table.state == "live"
    assert table.snapshot is not None
    assert sorted(row["id"] for row in pipeline.rows("public.later", snapshot=True)) == [1, 2, 3]
    pipeline.database.execute("INSERT INTO later VALUES (4)")
    pipeline.run()
    assert [row["id"] for row in pipeline.rows("public.later") if row["_sluice_lsn"] > table.snapshot.snapshot_lsn] == [
        4
    ]


def test_a_transaction_that_changes_the_shape_several_times_loses_none_of_its_rows(pipeline: IngestPipeline) -> None:
    """Each shape begins at the same commit as the one before it."""
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    with pipeline.database.connect() as connection, connection.transaction():
        for number in range(4):
            connection.execute(f"INSERT INTO a (id) VALUES ({number})".encode())
            connection.execute(f"ALTER TABLE a ADD COLUMN c{number} int DEFAULT {number}".encode())
        connection.execute("INSERT INTO a (id) VALUES (4)")
    pipeline.run()
    assert [row["id"] for row in pipeline.rows("public.a")] == [0, 1, 2, 3, 4]
    assert (pipeline.table("public.a").state, pipeline.table("public.a").schema_version) == ("live", 5)


def test_shapes_that_are_known_already_are_found_again_when_their_rows_are_sent_again(pipeline: IngestPipeline) -> None:
    """As after a crash between the entry of the newest shape and that of the rows: the manifest
    ends with the shapes.
    """
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    kept = f"{pipeline.database.slot}_kept"
    pipeline.database.execute(
        f"SELECT pg_copy_logical_replication_slot('{pipeline.database.slot}', '{kept}')", "INSERT INTO a VALUES (0)"
    )
    with pipeline.database.connect() as connection, connection.transaction():
        for number in (1, 2):
            connection.execute(f"ALTER TABLE a ADD COLUMN c{number} int".encode())
            connection.execute(f"INSERT INTO a VALUES ({number})".encode())
    pipeline.run()
    rows = max(entry.seq for entry in pipeline.entries() if isinstance(entry.body, Changes) and entry.body.segments)
    shapes = [entry.seq for entry in pipeline.entries() for table in entry.tables if table.schema is not None]
    assert max(shapes) == rows, "the shapes are stored with the rows that have them"
    for key in [key for key in pipeline.store.list(MANIFEST) if int(key.split("/")[-1].removesuffix(".json")) >= rows]:
        pipeline.store.delete(key)
    again = dataclasses.replace(pipeline, database=dataclasses.replace(pipeline.database, slot=kept))
    again.run()
    assert [row["id"] for row in again.rows("public.a")] == [0, 1, 2]
    assert (again.table("public.a").state, again.table("public.a").schema_version) == ("live", 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ALTER TABLE a ALTER COLUMN v TYPE bigint", "column v"),
        ("ALTER TABLE a ADD COLUMN r float8 DEFAULT random()", "rewritten"),
        ("ALTER TABLE a ALTER COLUMN v TYPE int USING v + 1", "rewritten"),
    ],
)
def test_a_change_that_the_lake_cannot_follow_turns_only_that_table_stale_with_reason(
    pipeline: IngestPipeline, change: str, says: str
) -> None:
    pipeline.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1, 1)",
    )
    pipeline.run()
    pipeline.database.execute(change, "INSERT INTO a (id) VALUES (2)", "INSERT INTO other VALUES (7)")
    pipeline.run()
    assert pipeline.table("public.a").state == "stale"
    assert says in pipeline.table("public.a").reason, pipeline.table("public.a").reason
    assert pipeline.table("public.other").state == "live"
    assert [row["id"] for row in pipeline.rows("public.other")] == [7]


@pytest.mark.parametrize(
    "harmless",
    ["VACUUM FULL a", "ANALYZE a", "CREATE INDEX ON a (v)", "TRUNCATE a", "ALTER TABLE a ALTER COLUMN v SET DEFAULT 3"],
)
def test_what_changes_no_row_unseen_leaves_the_table_live(pipeline: IngestPipeline, harmless: str) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1)")
    pipeline.run()
    pipeline.database.execute(harmless, "INSERT INTO a VALUES (2, 2)")
    pipeline.run()
    assert pipeline.table("public.a").state == "live"


def test_a_table_whose_column_has_our_name_is_quarantined_by_name_and_others_go_on(pipeline: IngestPipeline) -> None:
    pipeline.database.execute(
        'CREATE TABLE a (id int PRIMARY KEY, "_Sluice_op" int)',
        'CREATE TABLE b (id int PRIMARY KEY, x int, "X" int)',
        "CREATE TABLE c (i int)",
    )
    pipeline.run()
    assert "_Sluice_op" in pipeline.table("public.a").reason
    assert "case" in pipeline.table("public.b").reason
    assert {pipeline.table("public.a").state, pipeline.table("public.b").state} == {"quarantined"}
    assert pipeline.table("public.c").state == "live"


def test_a_missing_slot_is_a_named_stop_and_nothing_is_created(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    pipeline.database.execute(f"SELECT pg_drop_replication_slot('{pipeline.database.slot}')")
    with pytest.raises(SlotLost, match="MISSING") as caught:
        pipeline.run()
    assert caught.value.exit_code == 7
    assert pipeline.database.one(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", pipeline.database.slot
    ) == (0,)


@pytest.mark.parametrize("how", ["advance", "recreate"])
def test_a_slot_that_is_ahead_of_the_manifest_is_a_named_stop(pipeline: IngestPipeline, how: str) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    slot = pipeline.database.slot
    pipeline.database.execute("INSERT INTO a VALUES (1)")
    if how == "advance":
        pipeline.database.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    else:
        pipeline.database.execute(
            f"SELECT pg_drop_replication_slot('{slot}')",
            f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        )
    with pytest.raises(SlotLost, match="AHEAD"):
        pipeline.run()
    assert not pipeline.commits()


def test_a_second_instance_is_refused_while_the_first_streams(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pipeline.running() as running:
        running.wait_until(lambda: running.ingest is not None and running.ingest.status.connected)
        with pytest.raises(SlotBusy) as caught:
            pipeline.run(slot_wait_s=1)
        assert caught.value.exit_code == 8
        epoch = pipeline.state().epoch
        pipeline.database.execute("INSERT INTO a VALUES (1)")
        running.wait_until(lambda: bool(pipeline.commits()))
    assert epoch == pipeline.state().epoch == 1


def test_a_writer_that_was_replaced_is_fenced_out(pipeline: IngestPipeline) -> None:
    """The old one loses its connection unnoticed, another takes over, the old one wakes up: it must
    not publish.
    """
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pytest.raises(WriterFenced):
        _stream_until_replaced(pipeline)
    commits = pipeline.commits()
    assert len(commits) == len(set(commits))


def _stream_until_replaced(pipeline: IngestPipeline) -> None:
    with pipeline.running() as running:
        running.wait_until(lambda: [table.state for table in pipeline.state().tables.values()] == ["live"])
        pipeline.database.cut_stream()
        _take_over(pipeline)
        pipeline.database.execute("INSERT INTO a VALUES (2)")
        running.wait_until(lambda: running.error is not None)


def _take_over(pipeline: IngestPipeline) -> None:
    for _ in range(40):
        try:
            pipeline.run(slot_wait_s=0.2)
        except SlotBusy:
            pipeline.database.cut_stream()
            continue
        return
    raise AssertionError("the slot never became free")


def test_a_connection_that_the_server_ends_is_opened_again_and_nothing_is_lost(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pipeline.running() as running:
        for number in range(3):
            running.wait_until(lambda: running.ingest is not None and running.ingest.status.connected)
            pipeline.database.execute(f"INSERT INTO a VALUES ({number})")
            pipeline.database.cut_stream()
            running.wait_until(lambda: running.ingest is not None and len(pipeline.commits()) == number + 1)  # noqa: B023
    assert [row["id"] for row in pipeline.rows("public.a")] == [0, 1, 2]
    assert running.ingest is not None
    assert running.ingest.status.reconnects >= 1


def test_a_wrong_password_or_database_is_refused_at_once_without_naming_secrets(pipeline: IngestPipeline) -> None:
    pipeline.dsn = pipeline.database.dsn.replace(pipeline.database.name, "no_such_database").replace(
        "postgres@", "postgres:canary-secret@"
    )

    async def start() -> None:
        await Ingest(pipeline.options(), pipeline.store).run(until_lsn=1)

    with pytest.raises(ServiceError) as caught:
        asyncio.run(start())
    assert caught.value.exit_code == 5
    assert "canary-secret" not in str(caught.value) + caught.value.hint


def test_a_column_that_is_added_and_dropped_again_gives_two_versions(pipeline: IngestPipeline) -> None:
    """The shape after the drop is the first one again, byte for byte; it must not be taken for it."""
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)")
    pipeline.run(watch_interval_s=600)
    pipeline.database.execute(
        "INSERT INTO a VALUES (1, 1)", "ALTER TABLE a ADD COLUMN w int", "INSERT INTO a VALUES (2, 2, 2)"
    )
    pipeline.run(watch_interval_s=600)
    pipeline.database.execute("ALTER TABLE a DROP COLUMN w", "INSERT INTO a VALUES (3, 3)")
    pipeline.run(watch_interval_s=600)
    table = pipeline.table("public.a")
    assert (table.state, sorted(table.schemas)) == ("live", [1, 2, 3])
    assert [segment.schema_version for segment in pipeline.segments("public.a")] == [1, 2, 3]


def test_a_bounded_run_that_is_stopped_before_its_end_does_not_claim_success(pipeline: IngestPipeline) -> None:
    """A scheduler runs `sluice apply --once` behind it only if it ended with 0."""
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipeline.run()

    async def stopped_at_once() -> None:
        ingest = Ingest(pipeline.options(), pipeline.store)
        running = asyncio.ensure_future(ingest.run(until_lsn=2**60))
        while not ingest.status.connected:
            await asyncio.wait({running}, timeout=0.05)
            assert not running.done()
        ingest.stop()
        await running

    with pytest.raises(Interrupted, match="stopped before"):
        asyncio.run(stopped_at_once())


def test_what_a_stop_cancels_is_no_error(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with pipeline.running(watch_interval_s=0.05) as running, pipeline.database.connect() as locking:
        running.wait_until(lambda: pipeline.state().tables and pipeline.table("public.t").state == "live")
        with locking.transaction():
            locking.execute("LOCK TABLE pg_catalog.pg_publication_rel")
            running.wait_until(lambda: locking.execute(waiting, (pipeline.database.name,)).fetchone() == (1,))
            running.stop()
        assert running.ingest is not None
        assert running.ingest.errors.recent() == ()
