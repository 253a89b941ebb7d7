"""Gaps: a key that came to print otherwise in one and stayed equal to its type, a transaction that was prepared before
one, and a command that died after it had recorded one.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice.contract import keys
from sluice.contract.entries import Repair
from sluice.contract.row_form import Difference, Row
from sluice.contract.table_state import State
from sluice.ingest.options import FlushPolicy
from sluice.operate.compare import closing_gaps
from sluice.operate.compare.comparing import Comparison
from sluice.operate.new_slot import recreate
from sluice.source.snapshot_export import SnapshotHolder
from sluice.store.opening import open_store
from sluice_spark.read.changes import read_rows
from tests.support import commands
from tests.support.command_line import Sluice
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.pipeline import wait_until
from tests.support.source_setup import facts_of, since
from tests.support.sources import Database


class Found:
    """A comparison that found rows at the source (`missing`) and in the lake (`extra`) only, as `Comparing` does:
    the texts of these keys differ, and so do their hashes.
    """

    def __init__(self, pipeline: IngestPipeline, *, missing: list[str], extra: list[str]) -> None:
        self.source, self.wal_end = pipeline.known(), pipeline.wal_end
        self.difference = Difference(
            missing=tuple(Row(1, 1, (key,)) for key in missing), extra=tuple(Row(2, 2, (key,)) for key in extra)
        )

    def gap(self, state: Any) -> Iterator[Any]:
        facts = facts_of(self.source, state.table_id)
        with closing(SnapshotHolder.open(self.source)) as holder:
            verdict = Comparison(
                state.table_id, "public", "t", "different", lsn=holder.consistent_lsn, difference=self.difference
            )
            self.wal_end()  # as the real one does, for ingest to pass the snapshot's position soon
            yield verdict, facts, holder


@pytest.mark.parametrize("together", [1, pytest.param(10, marks=slow)])
def test_a_key_that_prints_otherwise_replaces_the_row_under_its_old_text(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """In one file: the gap can never be closed. In two (more keys than MOST_KEYS, such as lower(email) of citext
    keys): it is closed, the old row is not removed, and the table is live with both.
    """
    monkeypatch.setattr(closing_gaps, "MOST_KEYS", together)
    pipeline.run("CREATE TABLE t (id numeric PRIMARY KEY, v int)", "INSERT INTO t VALUES (1.0, 1), (2, 2)")
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.database.slot}')")
    pipeline.execute("UPDATE t SET id = 1.00 WHERE id = 1")
    recreate(pipeline.options(), pipeline.store, mirrored=lambda _: True)
    found = Found(pipeline, missing=["1.00"], extra=["1.0"])
    with pipeline.running(watch_interval_s=0.1, flush=FlushPolicy(progress_interval_s=0.5)):
        closing_gaps.close_gap(
            pipeline.known(),
            pipeline.store,
            found,  # type: ignore[arg-type]
            pipeline.table("public.t"),
            seconds=60,
        )
    assert pipeline.table("public.t").state == "live"
    (repair,) = (entry.body for entry in pipeline.entries() if isinstance(entry.body, Repair))
    rows = [
        (row["_sluice_op"], str((row["_sluice_old"] or row)["id"]), row["_sluice_ordinal"])
        for segment in repair.segments
        for part in read_rows(pipeline.store, segment)
        for row in part.to_pylist()
    ]
    assert sorted((op, key) for op, key, _ in rows) == [("d", "1.0"), ("u", "1.00")]
    assert len({ordinal for _, _, ordinal in rows}) == 2, "no two changes of one transaction have the same place"


TWO_PHASE: dict[str, Any] = {"two_phase": True}


@slow
@pytest.mark.parametrize("ending", ["COMMIT PREPARED 'g'", "ROLLBACK PREPARED 'g'"])
def test_ingest_goes_on_though_a_transaction_was_prepared_before_the_slots_new_position(
    pipeline: IngestPipeline, ending: str
) -> None:
    """Its PREPARE is not sent again, its COMMIT PREPARED would be: ingest stopped there at every start, and
    `sluice slot recreate` said that nothing was lost.
    """
    database = pipeline.database
    since(database, 15, "decoding at PREPARE")
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)", **TWO_PHASE)
    database.transact("INSERT INTO t VALUES (3, 3)", end="PREPARE TRANSACTION 'g'")
    pipeline.run(**TWO_PHASE)
    assert pipeline.state().prepared
    database.execute("INSERT INTO t VALUES (4, 4)")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', '{pipeline.wal_end()}')")
    going_on = threading.Thread(
        target=lambda: recreate(pipeline.options(**TWO_PHASE), pipeline.store, mirrored=lambda _: True)
    )
    with capture_logs() as said:
        going_on.start()
        wait_until(lambda: bool(said), what="it says what it waits for", timeout=30)
        database.execute(ending)
    no_process: list[int] = []
    waits = ("the new replication slot waits for older transactions to end", no_process, 1)
    assert [(line["event"], line["processes"], line["prepared"]) for line in said][:1] == [waits]
    going_on.join(60)
    assert not going_on.is_alive()
    pipeline.run("INSERT INTO t VALUES (5, 5)", **TWO_PHASE)
    assert pipeline.table("public.t").state == State.GAP
    assert [row["id"] for row in pipeline.rows("public.t")][-1] == 5


def test_tables_that_cannot_be_compared_are_read_again_though_the_command_died(
    sluice: Sluice, environment: dict[str, str], database: Database, tmp_path: Path
) -> None:
    """What `sluice slot recreate` left to do is done when it is given again."""
    database.execute(
        "CREATE TABLE bag (v text)", "ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES ('a')"
    )
    assert sluice("run", "--until-caught-up").returncode == 0
    assert sluice("slot", "drop", "--confirm", database.slot).returncode == 0
    database.execute("INSERT INTO bag VALUES ('lost')")
    dying = {**environment, "SLUICE_FAULTS": "gap.recorded=crash@1"}
    died = commands.sluice("slot", "recreate", "--confirm", database.slot, env=dying)
    assert died.returncode not in (0, 2)
    sluice("slot", "recreate", "--confirm", database.slot)
    store = open_store(f"file://{tmp_path}/spool", prefix="shop/", options={})
    assert [key for key in store.list(keys.CONTROL) if keys.is_control(key)], "bag is stale for ever"


def test_a_new_slot_is_said_to_cost_a_changelog_its_changes(
    sluice: Sluice, environment: dict[str, str], database: Database
) -> None:
    """That the table cannot be compared by a key, which it has, was all that was said."""
    with Path(environment["SLUICE_CONFIG"]).open("a") as config:
        config.write(
            "\ntables: {public.orders: {on_change: stop, targets: [{kind: mirror}, {kind: changelog, name: log}]}}\n"
        )
    assert sluice("run", "--until-caught-up").returncode == 0
    assert sluice("slot", "drop", "--confirm", database.slot).returncode == 0
    recreated = sluice("slot", "recreate", "--confirm", database.slot)
    assert "public.orders: will be resynced, and its changelog then loses the changes that it has" in recreated.stdout
