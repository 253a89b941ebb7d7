"""Changes that cannot be followed: the table is read again by itself, at most as often as its pauses
allow, and the manifest says why.
"""

from datetime import UTC, datetime, timedelta

import pytest

from sluice.contract import resyncs
from sluice.manifest.values import TableState
from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_catalog_unseen_changes import CASES, PLAIN
from tests.support.catalog_stories import RESYNC, changed_while_down
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

PARTED = CASES["partition_born_and_truncated"][0]
STORIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]] = {
    "values_rewritten_under_the_same_type": (
        PLAIN,
        ("ALTER TABLE t ALTER v TYPE text USING v || '!'",),
        {"rewrite": 1},
    ),
    "volatile_default": (
        PLAIN,
        ("ALTER TABLE t ADD COLUMN r text DEFAULT md5(random()::text)", "INSERT INTO t VALUES (3, 'c')"),
        {"rewrite": 1},
    ),
    "partition_attached": (*CASES["attach_in_one_transaction"], {"partition": 1}),
    "leaf_truncated": (PARTED, ("TRUNCATE r1", "INSERT INTO r VALUES (7, 7)"), {"partition": 1}),
    "partition_detached": (PARTED, ("ALTER TABLE r DETACH PARTITION r1",), {"partition": 1}),
    "enum_label_renamed": (*CASES["label_renamed_and_back"], {"type": 1}),
}


def table(pipeline: IngestPipeline, *, schema: str = "public") -> TableState:
    return next(table for table in pipeline.state().tables.values() if table.schema_name == schema)


@pytest.mark.parametrize("name", cases(STORIES, quick=["volatile_default", "leaf_truncated"]))
def test_a_change_that_cannot_be_followed_costs_one_snapshot_and_ends_equal(
    pipeline: IngestPipeline, name: str
) -> None:
    before, after, causes = STORIES[name]
    changed_while_down(pipeline, before, after, runs=1, **RESYNC)
    pipeline.assert_equal(causes)


FILTERED = (
    "CREATE TABLE t (id int PRIMARY KEY, body text)",
    "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT i, repeat(chr(64 + i), 3000) FROM generate_series(1, 20) i",
    "CREATE PUBLICATION {p} FOR TABLE t WHERE (id > 10)",
)


@pytest.mark.parametrize("streamed", cases([False, True], quick=[STREAMS_SOON]))
def test_a_row_that_comes_into_a_filter_without_its_values_costs_one_snapshot(
    pipeline: IngestPipeline, streamed: bool
) -> None:
    since(pipeline.database, 16 if streamed else 15, "row filters")
    if streamed:
        pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    pipeline.run(*FILTERED, **RESYNC)
    pipeline.run("UPDATE t SET body = 'short' WHERE id < 12", "UPDATE t SET id = 21 WHERE id = 11", **RESYNC)
    assert (table(pipeline).state, table(pipeline).resyncs.counts) == ("live", {}), "all of it was sent"
    pipeline.execute("INSERT INTO t VALUES (2, repeat('x', 3000)) ON CONFLICT (id) DO UPDATE SET body = excluded.body")
    pipeline.run("UPDATE t SET id = 50 WHERE id = 2", "UPDATE t SET id = -12 WHERE id = 12", **RESYNC)
    now = table(pipeline)
    assert (now.state, now.generation, now.resyncs.counts) == ("live", 2, {"value": 1}), now.reason
    assert pipeline.snapshot_rows("public.t") == {row for row in pipeline.source_rows("t") if int(row[0]) > 10}
    assert "moved a row into" in next(
        table.why.what for entry in pipeline.entries() for table in entry.tables if table.state == "stale" and table.why
    )


@slow
def test_a_policy_of_stop_leaves_the_table_stale_and_says_what_to_do(pipeline: IngestPipeline) -> None:
    stop = {**RESYNC, "policies": Policies(tables={"public.t": TablePolicy(on_change="stop")})}
    pipeline.run(*PLAIN, **stop)
    pipeline.run(*STORIES["values_rewritten_under_the_same_type"][1], **stop)
    stale = table(pipeline)
    assert (stale.state, stale.cause, stale.resync_at, stale.resyncs.counts) == ("stale", "rewrite", "", {})
    assert stale.reason.endswith("`sluice resync public.t` takes a new snapshot of it")
    pipeline.run("ALTER TABLE t RENAME TO u", **RESYNC | {"policies": Policies(TablePolicy(on_change="stop"))})
    assert table(pipeline).reason == stale.reason.replace("public.t", "public.u")
    pipeline.run(**RESYNC)
    assert (table(pipeline).state, table(pipeline).resyncs.counts) == ("live", {"rewrite": 1})


@slow
def test_a_table_that_changes_in_a_loop_waits_visibly_and_is_read_again_when_it_rested(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resyncs, "REST", 0.0)
    monkeypatch.setattr(resyncs, "PAUSES_SECONDS", (0.0, 0.0, 3600.0))
    pipeline.run(*PLAIN, **RESYNC)
    for number in range(4):
        pipeline.run(f"ALTER TABLE t ALTER v TYPE text USING v || '{number}'", **RESYNC)
    waiting = table(pipeline)
    assert (waiting.state, waiting.resyncs.counts) == ("stale", {"rewrite": 2})
    assert waiting.resync_at in waiting.reason
    at = datetime.fromisoformat(waiting.resync_at)
    assert timedelta(minutes=50) < at - datetime.now(UTC) <= timedelta(minutes=60)
    monkeypatch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))
    pipeline.run(**RESYNC)
    pipeline.assert_equal()


def test_lost_changes_of_all_tables_are_left_for_people_to_decide(pipeline: IngestPipeline) -> None:
    since(pipeline.database, 16, "leaving out origins")
    pipeline.run(*PLAIN, **RESYNC, origin="none")
    pipeline.run(**RESYNC)
    assert (table(pipeline).state, table(pipeline).cause, table(pipeline).resync_at) == ("stale", "gap", "")
