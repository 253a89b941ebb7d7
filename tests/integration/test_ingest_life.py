"""Start, loss, takeover and change of shape: what continues, what stops by name, and what turns one
table stale.
"""

import threading

import pytest

from sluice.errors import Interrupted, ServiceError, SlotBusy, SlotLost
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline


def test_rows_that_were_there_join_the_stream_without_gap_or_overlap(pipeline: IngestPipeline) -> None:
    """A writer storms while the snapshot is read; it and the later changes together are every row
    exactly once.
    """
    pipeline.execute(
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
    assert pipeline.ids("public.a") == [*range(1, 2001), *inserted]


@pytest.mark.parametrize("row", [True, False], ids=["before a row", "in silence"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param("ALTER TABLE a ALTER COLUMN v TYPE bigint", "column v", marks=slow),
        pytest.param("ALTER TABLE a ADD COLUMN r float8 DEFAULT random()", "rewritten", marks=slow),
        ("ALTER TABLE a ALTER COLUMN v TYPE int USING v + 1", "rewritten"),
        pytest.param(
            "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD w int PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
            "rewritten",
            marks=slow,
        ),
    ],
)
def test_a_change_that_the_lake_cannot_follow_turns_only_that_table_stale_with_reason(
    pipeline: IngestPipeline, change: str, says: str, row: bool
) -> None:
    pipeline.run(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1, 1)",
    )
    pipeline.run(change, *(["INSERT INTO a (id) VALUES (2)"] if row else []), "INSERT INTO other VALUES (7)")
    assert pipeline.table("public.a").state == "stale"
    assert says in pipeline.table("public.a").reason, pipeline.table("public.a").reason
    assert pipeline.table("public.other").state == "live"
    assert [row["id"] for row in pipeline.rows("public.other")] == [7]


def test_a_missing_slot_is_a_named_stop_and_nothing_is_created(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.database.slot}')")
    with pytest.raises(SlotLost, match="MISSING") as caught:
        pipeline.run()
    assert caught.value.exit_code == 7
    assert pipeline.database.one(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", pipeline.database.slot
    ) == (0,)


@pytest.mark.parametrize("how", ["advance", "recreate"])
def test_a_slot_that_is_ahead_of_the_manifest_is_a_named_stop(pipeline: IngestPipeline, how: str) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    slot = pipeline.database.slot
    pipeline.execute("INSERT INTO a VALUES (1)")
    if how == "advance":
        pipeline.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    else:
        pipeline.execute(
            f"SELECT pg_drop_replication_slot('{slot}')",
            f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        )
    with pytest.raises(SlotLost, match="AHEAD"):
        pipeline.run()
    assert not pipeline.commits()


def test_a_second_instance_is_refused_while_the_first_streams(pipeline: IngestPipeline) -> None:
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pipeline.running() as running:
        running.wait_until_connected()
        with pytest.raises(SlotBusy) as caught:
            pipeline.run(slot_wait_s=1)
        assert caught.value.exit_code == 8
        epoch = pipeline.state().epoch
        pipeline.execute("INSERT INTO a VALUES (1)")
        running.wait_until(lambda: bool(pipeline.commits()))
    assert epoch == pipeline.state().epoch == 1


def test_a_wrong_password_or_database_is_refused_at_once_without_naming_secrets(pipeline: IngestPipeline) -> None:
    pipeline.dsn = pipeline.database.dsn.replace(pipeline.database.name, "no_such_database").replace(
        "postgres@", "postgres:canary-secret@"
    )

    with pytest.raises(ServiceError) as caught:
        pipeline.run_until(1)
    assert caught.value.exit_code == 5
    assert "canary-secret" not in str(caught.value) + caught.value.hint


def test_a_bounded_run_that_is_stopped_before_its_end_does_not_claim_success(pipeline: IngestPipeline) -> None:
    """A scheduler runs `sluice apply --once` behind it only if it ended with 0."""
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")

    with pytest.raises(Interrupted, match="stopped before"), pipeline.running(until_lsn=1 << 60) as running:
        running.wait_until_connected()


def test_what_a_stop_cancels_is_no_error(pipeline: IngestPipeline) -> None:
    pipeline.execute("CREATE TABLE t (id int PRIMARY KEY)")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with pipeline.running(watch_interval_s=0.05) as running, pipeline.database.connect() as locking:
        running.wait_until_live()
        with locking.transaction():
            locking.execute("LOCK TABLE pg_catalog.pg_publication_rel")
            running.wait_until(lambda: locking.execute(waiting, (pipeline.database.name,)).fetchone() == (1,))
            running.stop()
        assert running.ingest.errors.recent() == ()
