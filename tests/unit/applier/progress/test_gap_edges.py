"""Gaps at the edges: a shape that the lake never gets in front of one, and one that was closed without a row."""

from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.entries import Entry, Lost
from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState
from sluice_spark.applied_window import Applied
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.progress.boundary import Boundaries
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import not_pruned
from sluice_spark.progress.table_progress import Work
from sluice_spark.read.window import Window
from tests.support.manifests import changes, follow, opened, repair, snapshot, started, table
from tests.unit.applier.ledgers import ledger_of

APPLIED = 30
"""The position of the one change that the lake table has."""


def _applied() -> tuple[PipelineState, int]:
    """The manifest, and its last entry: everything is in the lake."""
    state, _ = follow(started(), snapshot())
    state, _ = follow(state, changes(APPLIED), through_lsn=APPLIED)
    return state, state.seq


def _lost(state: PipelineState) -> tuple[PipelineState, Entry]:
    return follow(state, opened(lost=Lost("the slot was lost", ("7",))), through_lsn=100)


def _ledger(state: PipelineState, applied: int, *, log: AppliedLog | None = None, **options: object) -> Ledger:
    """One that has read as far as the lake table has got."""
    ledger = ledger_of(state, ExaminedVersion(5, applied), log=log, once=True, **options)
    ledger.read_seq, ledger.read_lsn = applied, APPLIED
    return ledger


def test_a_shape_whose_first_rows_are_lost_is_no_shape_to_compare_the_lake_table_in() -> None:
    """Ingest recorded the shape of a transaction and was killed before it published it; then the slot was lost. The
    lake table stands in front of the gap and never gets the new column: every comparison would lack it for ever.
    """
    state, applied = _applied()
    state, shaped = follow(state, table(state="live", version=2, lsn=35))
    state, lost = _lost(state)
    known, ledger = state.tables["7"], _ledger(state, applied)
    for entry in (shaped, lost):
        ledger.take_in(entry, "")
    brought = [work.window.schema_version for work in ledger.ready(now=0.0, boundary_seq=0)]
    assert known.state == State.STALE or 2 in brought, "the gap can never be closed"
    assert known.resync_at, "it is read again by itself, as a table is whose columns are about to change"


def test_a_boundary_from_before_the_rows_of_a_gap_is_not_said_of_its_table_after_a_restart() -> None:
    """The gap was closed as of 150 without a row: the lake table is right as of 150, and not as of 120."""
    state, applied = _applied()
    state, lost = _lost(state)
    state, first = follow(state, changes(120), through_lsn=120)
    state, _ = follow(state, changes(150), through_lsn=150)
    closing = repair(as_of_lsn=150, through_lsn=150, gap_seq=lost.seq, segments=())
    state, _ = follow(state, closing)

    ledger = _ledger(state, applied)
    ledger.take_in(lost, "")
    known = ledger.tables["7"]
    work = Work("7", known, state.tables["7"], Window((), lost.seq))
    # No row, no commit: the marker stays where it was.
    ledger.applied(work, Applied(known.place, lost.seq, committed=False))
    assert known.pending.snapshot_lsn == 150
    log = AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", ledger.report())

    again = _ledger(state, applied, log=log)
    boundaries = Boundaries(again, apart_seconds=0.0)
    again.take_in(lost, "")
    # Another table is at this entry, and the boundary is set here.
    again.take_in(first, "")
    waiting = again.tables["7"].pending
    while waiting.changes:
        window = waiting.next_window(max_bytes=1, until_seq=again.read_seq)
        assert window is not None
        # Everything up to 150 is in the rows that closed the gap: nothing is visible, nothing is committed.
        done = Work("7", again.tables["7"], state.tables["7"], window)
        again.applied(done, Applied(done.progress.place, window.last_seq, committed=False))
    boundaries.turn(now=1.0)
    said: list[Complete] = []
    boundaries.publish(again.report(), lambda complete, _: said.append(complete), now=2.0)
    assert not [one for one in said if one.lsn < 150 and one.versions], "version 5 is not the table as of 120"


def test_a_table_with_an_open_gap_keeps_no_other_table_from_maintenance() -> None:
    """`Planner.choose` gives no turn while windows wait."""
    state, applied = _applied()
    state, lost = _lost(state)
    ledger = _ledger(state, applied)
    ledger.take_in(lost, "")
    assert ledger.halted("7")
    assert ledger.waiting(now=5.0) == {}


def test_a_changelog_that_was_no_target_when_changes_were_lost_does_not_go_on_behind_them() -> None:
    """A table with a changelog is read again after a loss, unless the configuration that recorded the loss did not have
    it. The rows that closed the gap were appended as changes, and the changelog was live without those that are lost.
    """
    state, applied = _applied()
    state, lost = _lost(state)
    state, _ = follow(state, changes(150), through_lsn=150)
    state, _ = follow(state, repair(as_of_lsn=150, through_lsn=150, gap_seq=lost.seq))
    targets = {"public.t7": {"targets": [{"kind": "mirror"}, {"kind": "changelog", "name": "changes"}]}}

    runs = _ledger(state, applied, tables=targets)
    runs.take_in(lost, "")
    assert [work.table_id for work in runs.ready(now=0.0, boundary_seq=0)] == ["7"]
    begun = _ledger(state, applied, tables=targets)
    for key, progress in begun.tables.items():
        not_pruned(progress, begun.state.tables[key], 0)
    for ledger in (runs, begun):
        rows = ledger.report()
        assert {key: row.state for key, row in rows.items()} == {"7": State.GAP, "7/changes": State.STALE}
        assert "changes of it are lost" in rows["7/changes"].reason
