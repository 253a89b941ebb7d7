"""Rows that other columns identify than before: the table goes on, or is read again once, and no row of
it is lost or doubled.
"""

import random

import pytest

from sluice import faults
from sluice.contract.lake_targets import LakeTarget
from sluice.ingest.options import FlushPolicy
from sluice.tables.policies import Policies, TablePolicy
from tests.support.catalog_stories import RESYNC, changed_in_a_streamed_transaction, changed_while_down
from tests.support.extent import cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline, Running
from tests.support.key_stories import MADE, history, play
from tests.support.source_setup import since

KEYED = (
    "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text)",
    "INSERT INTO t SELECT i, -i, 'v' FROM generate_series(1, 20) i",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
KEYLESS = ("CREATE TABLE t (id int NOT NULL, code int, v text)", *KEYED[1:])
FULL = (*KEYLESS[:1], "ALTER TABLE t REPLICA IDENTITY FULL", *KEYLESS[1:])
INDEXED = (*KEYED[:1], "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key", *KEYED[1:])
CHANGES = ("UPDATE t SET v = 'u' WHERE id % 3 = 0", "DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (99, 99, 'n')")
DROPPED = "ALTER TABLE t DROP CONSTRAINT t_pkey"
ADDED = "ALTER TABLE t ADD PRIMARY KEY (id)"
WHOLE, PLAIN = "ALTER TABLE t REPLICA IDENTITY FULL", "ALTER TABLE t REPLICA IDENTITY DEFAULT"
BY_CODE = "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key"
SECOND = "INSERT INTO t VALUES (1, 500, 'second of id 1')"


def replaced(columns: str) -> str:
    return f"BEGIN; {DROPPED}; ALTER TABLE t ADD PRIMARY KEY ({columns}); COMMIT"


STORIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]] = {
    "replaced": (
        KEYED,
        (*CHANGES[:1], replaced("code"), *CHANGES, "UPDATE t SET code = 1000 WHERE id = 2"),
        {},
    ),
    "dropped": (KEYED, (*CHANGES, DROPPED, SECOND), {}),
    "deferrable_beside_whole_rows": (
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, code int, v text)", WHOLE, *KEYED[1:]),
        (
            "UPDATE t SET id = 3 - id WHERE id < 3",
            "UPDATE t SET id = id + 1",
            (
                "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO t VALUES (9, 90, 'n'); "
                "DELETE FROM t WHERE id = 9 AND v = 'v'; COMMIT"
            ),
        ),
        {},
    ),
    "dropped_in_silence": (KEYED, (DROPPED,), {}),
    "added_to_a_table_without_one": (KEYLESS, ("INSERT INTO t VALUES (40, 40, 'x')", ADDED, *CHANGES), {}),
    "added_between_rows_of_one_transaction": (
        KEYLESS,
        (f"BEGIN; INSERT INTO t VALUES (40, 4, 'x'); {ADDED}; UPDATE t SET v = 'y'; COMMIT",),
        {"key": 1},
    ),
    "full_taken_from_a_table_without_key": (FULL, (*CHANGES, PLAIN, "INSERT INTO t VALUES (99, 99, 'n')"), {}),
    "full_given_to_a_table_with_a_key": (
        KEYED,
        (*CHANGES, WHOLE, "UPDATE t SET id = id + 500 WHERE id < 4", "DELETE FROM t WHERE id = 9"),
        {},
    ),
    "full_given_and_taken_within_one_transaction": (
        KEYED,
        (
            (
                f"BEGIN; UPDATE t SET v = 'a' WHERE id < 5; {WHOLE}; UPDATE t SET v = 'b', id = 700 WHERE id = 4; "
                f"{PLAIN}; DELETE FROM t WHERE id = 3; COMMIT"
            ),
            *CHANGES,
        ),
        {},
    ),
    "identity_switched_within_a_transaction": (
        KEYED,
        (
            (
                f"BEGIN; UPDATE t SET v = 'a' WHERE id < 5; {BY_CODE}; "
                "UPDATE t SET code = 800 WHERE id = 4; DELETE FROM t WHERE id = 3; COMMIT"
            ),
            *CHANGES,
        ),
        {"key": 1},
    ),
    "identity_index_dropped": (
        INDEXED,
        (*CHANGES, "ALTER TABLE t DROP CONSTRAINT t_code_key", "INSERT INTO t VALUES (98, 98, 'after')"),
        {},
    ),
    "primary_key_replaced_under_full": (
        (*KEYED[:1], WHOLE, *KEYED[1:]),
        (*CHANGES, f"{DROPPED}, ADD PRIMARY KEY (code)", "UPDATE t SET v = 'y'"),
        {"key": 1},
    ),
    "primary_key_of_a_root_replaced": (
        (
            "CREATE TABLE t (id int, code int NOT NULL, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (1000)",
            KEYED[1],
            "CREATE PUBLICATION {p} FOR TABLE t WITH (publish_via_partition_root = true)",
        ),
        (*CHANGES[:2], replaced("id, code"), *CHANGES, "UPDATE t SET code = 700, v = 'moved' WHERE id = 5"),
        {},
    ),
}


@pytest.mark.parametrize(
    "name",
    cases(
        STORIES,
        quick=[
            "dropped_in_silence",
            "added_between_rows_of_one_transaction",
            "identity_switched_within_a_transaction",
        ],
    ),
)
def test_a_table_whose_row_identity_changes_goes_on_and_is_equal(pipeline: IngestPipeline, name: str) -> None:
    before, after, causes = STORIES[name]
    changed_while_down(pipeline, before, after, runs=2, **RESYNC)
    pipeline.assert_equal(causes)


@slow
@pytest.mark.parametrize("name", ["replaced", "added_between_rows_of_one_transaction"])
def test_the_same_holds_while_ingest_runs(pipeline: IngestPipeline, name: str) -> None:
    before, after, causes = STORIES[name]
    pipeline.execute(*before)
    with pipeline.running(watch_interval_s=0.5, **RESYNC) as running:
        running.wait_until_live()
        for statement in after:
            pipeline.execute(statement)
        running.wait_until(lambda: [table.resyncs.counts for table in pipeline.state().tables.values()] == [causes])
    pipeline.run(**RESYNC)
    pipeline.assert_equal(causes)


def test_a_changelog_is_read_again_when_old_rows_come_with_fewer_columns(pipeline: IngestPipeline) -> None:
    before = (*KEYED[:1], "ALTER TABLE t REPLICA IDENTITY FULL", *KEYED[1:])
    after = (*CHANGES, "ALTER TABLE t REPLICA IDENTITY DEFAULT", *CHANGES[:1])
    options = {**RESYNC, "policies": Policies(TablePolicy(targets=(LakeTarget("changelog"),)))}
    changed_while_down(pipeline, before, after, runs=2, **options)
    pipeline.assert_equal({"key": 1})


@pytest.mark.parametrize("prepared", cases([False, True], quick=[True]))
def test_a_key_that_changes_between_the_rows_of_an_open_transaction_costs_one_snapshot(
    pipeline: IngestPipeline, *, prepared: bool
) -> None:
    inside = (
        "INSERT INTO t SELECT i, -i, 'streamed' FROM generate_series(100, 400) i",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (code)",
        "UPDATE t SET v = 'after' WHERE id % 2 = 0",
    )
    changed_in_a_streamed_transaction(pipeline, KEYED, inside, CHANGES, prepared=prepared, **RESYNC)
    pipeline.assert_equal({"key": 1})


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=slow) for seed in (2, 10, *range(20, 40)))])
def test_any_history_of_keys_and_rows_is_equal_or_named(pipeline: IngestPipeline, seed: int) -> None:
    chance = random.Random(seed)
    pipeline.run(*(one.format(t="t") for one in MADE), "CREATE PUBLICATION {p} FOR TABLE t", **RESYNC)
    for _ in range(4):
        play(pipeline.database, history(chance, "t", steps=chance.randrange(1, 9)))
        pipeline.run(**RESYNC)
    (found,) = pipeline.verdicts()
    assert not found.is_silent_difference, found
    assert found.state in ("live", "stale", "snapshot", "pending"), found


REPLACED, SENT = f"{DROPPED}, ADD PRIMARY KEY (code)", "all of it is sent"
UNDONE = {
    "savepoint": ("BEGIN", *CHANGES[:1], "SAVEPOINT s", REPLACED, *CHANGES[1:2], SENT, "ROLLBACK TO s", "COMMIT"),
    "prepared": ("BEGIN", *CHANGES[:1], "PREPARE TRANSACTION 'g'", SENT, "ROLLBACK PREPARED 'g'", *CHANGES[:1]),
}


def wait_for_all(running: Running) -> None:
    """Returns when ingest was sent all that is in the log now."""
    database, end = running.pipeline.database, running.pipeline.wal_end()
    asked = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND sent_lsn >= %s::pg_lsn"
    running.wait_until(lambda: database.all(asked, database.slot, end))


@slow
def test_a_lost_connection_to_the_catalog_at_a_change_of_the_key_costs_no_snapshot(pipeline: IngestPipeline) -> None:
    """The rows came again, and were taken for further ones of the transaction that they were the first of."""
    pipeline.run(*KEYED, **RESYNC)
    with pipeline.running(watch_interval_s=60, **RESYNC) as running:
        wait_for_all(running)
        faults.arm("catalog.asked=raise:SourceUnavailable@1")
        pipeline.execute(
            "; ".join(("BEGIN", REPLACED, *CHANGES, "COMMIT")),
        )
        running.wait_until(lambda: faults.passages("catalog.asked") > 1)
    pipeline.run(**RESYNC)
    pipeline.assert_equal({})


@pytest.mark.parametrize("undone", [UNDONE["savepoint"], pytest.param(UNDONE["prepared"], marks=slow)], ids=UNDONE)
def test_what_was_rolled_back_hides_no_change_of_the_key(pipeline: IngestPipeline, undone: tuple[str, ...]) -> None:
    """An entry had rows of both keys where a savepoint that was rolled back had announced the second one, or a
    prepared transaction that was had been the first to announce the first one.
    """
    since(pipeline.database, 16, "streaming at once")
    options = {
        **RESYNC,
        "two_phase": True,
        "flush": FlushPolicy(max_delay_s=60, min_interval_s=60),
        "watch_interval_s": 60,
    }
    pipeline.run(*KEYED, **options)
    if "SAVEPOINT s" in undone:
        pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    with pipeline.running(streaming="on", **options) as running, pipeline.database.connect() as connection:
        for statement in (SENT, *undone, "; ".join(("BEGIN", REPLACED, *CHANGES, "COMMIT")), SENT):
            if statement == SENT:
                wait_for_all(running)
            else:
                connection.execute(statement.encode())
    pipeline.run(**options)
    pipeline.assert_equal({})
