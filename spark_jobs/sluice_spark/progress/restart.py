"""How far a table is when the applier starts, from its Delta table and the last report.

Owns that a start trusts the lake before the report. A table whose Delta table was changed by
somebody else starts stale. A table that cannot be read starts quarantined, and a worker tries it
again.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog
from pyspark.sql import SparkSession

from sluice.contract.applied import AppliedLog
from sluice.contract.reasons import Reason, ReasonCode, lake_differs, sentence
from sluice.contract.table_state import State
from sluice.errors import ApplyError, UnsupportedChange
from sluice.manifest.values import TableState
from sluice_spark.kinds.registry import other_kind
from sluice_spark.lake.commit_way import CommitWay
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.failures import SparkGone
from sluice_spark.lake.opening import Lake
from sluice_spark.lake.table import LakeTable
from sluice_spark.progress.table_progress import ATTEMPTS, TableProgress
from sluice_spark.read.window import PendingChanges
from sluice_spark.telemetry import ApplyTelemetry

AT_ONCE = 32
"""Tables that are looked at side by side: a look waits for three answers of the object store."""

_SEEN_AGAIN = (ReasonCode.OTHER_MODE, ReasonCode.PATH_TAKEN)
"""What the lake table and the configuration of today say of themselves."""

_log = structlog.get_logger("sluice.apply")


def find_tables(
    states: Mapping[str, TableState],
    log: AppliedLog | None,
    *,
    lake: Lake,
    session: SparkSession,
    telemetry: ApplyTelemetry,
    floor_seq: int = 0,
    horizon_seq: int = 0,
    remedy: str = "",
) -> dict[str, TableProgress]:
    """How far each lake table is, by key. Every one has been examined as `LakeTable.find` says:
    nothing is skipped on the word of a marker whose history has not been looked at. A forgotten one is
    not looked at. Raises SparkGone. Entries through `floor_seq` are gone,
    and objects that those through `horizon_seq` name. `remedy` is that of stale tables, see `sentence`.
    """

    def find(state: TableState) -> TableProgress:
        if state.is_forgotten:
            return restore(state, log, place=ExaminedVersion())
        before = reported(state, log)
        table = lake.unseen(state, session, since=before.version if before else -1)
        progress = find_table(state, log, lake=table, telemetry=telemetry)
        # A lake table of which nothing was reported kept nothing from being pruned.
        is_new = log is not None and state.key not in log.tables
        needed = horizon_seq if is_new or not progress.pending.has_snapshot else floor_seq
        return not_pruned(progress, state, needed, remedy=remedy)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="open") as pool:
        return dict(zip(states, pool.map(find, states.values()), strict=True))


def find_table(
    state: TableState, log: AppliedLog | None, *, lake: LakeTable, telemetry: ApplyTelemetry
) -> TableProgress:
    """Looks at `lake`, the Delta table of `state`, and says how far it is. Raises SparkGone."""
    name, before = state.title, reported(state, log)
    try:
        place = lake.find(before) if state.state.is_followed else lake.recorded()
        progress = restore(state, log, place=place)
        if progress.pending.has_snapshot and progress.stale is None:
            progress.stale = other_kind(state, lake.column_names())
        return progress
    except UnsupportedChange as error:
        _log.error("table is stale", table=name, error=str(error))
        telemetry.stale(error)
        return restore(state, log, place=before or ExaminedVersion(), doubt=lake_differs(error))
    except SparkGone:
        raise
    except ApplyError as error:
        # The report says from which entry on to read. The first look of a worker finds out whether
        # the report was right.
        progress = restore(state, log, place=before or ExaminedVersion())
        progress.failures = ATTEMPTS
        progress.problem = Reason(ReasonCode.LAKE_UNREADABLE, {"what": str(error)})
        _log.warning("the lake table cannot be read", table=name, error=str(error))
        return progress


def not_pruned(progress: TableProgress, state: TableState, floor_seq: int, *, remedy: str = "") -> TableProgress:
    """A table can only go on from an entry that is there. What was pruned had been applied: so its lake
    table is older than it was, or gone, and so is the report.
    """
    pending = progress.pending
    needed = pending.applied_seq if pending.has_snapshot else pending.generation_seq
    if state.keeps_changes and state.gaps and state.state.is_followed and progress.stale is None:
        # Also one that has some: it was no target when the slot was lost, and went on behind the gap otherwise.
        progress.lacks_changes()
    if needed <= floor_seq and state.state.is_followed and state.schemas and progress.stale is None:
        progress.stale = Reason(ReasonCode.PRUNED, {"entry": str(needed), "floor": str(floor_seq)})
        name = f"{state.schema_name}.{state.table_name}"
        why = sentence(progress.stale, State.STALE, name, remedy=remedy)
        _log.error("table is stale", table=state.title, error=why)
    return progress


def reported(state: TableState, log: AppliedLog | None) -> ExaminedVersion | None:
    """Where the last log says that the present generation's lake table stands, None if it does not
    say.
    """
    last = log.tables.get(state.key) if log else None
    if last is None or last.generation != state.generation or last.delta_version < 0:
        return None
    return ExaminedVersion(last.delta_version, last.committed_seq or None)


def restore(
    state: TableState, log: AppliedLog | None, *, place: ExaminedVersion, doubt: Reason | None = None
) -> TableProgress:
    """One table at start. The lake's marker decides what is applied; the last log adds the progress
    of an idle table, counters and the reason of a stop.

    `place` is where the lake table stands. `doubt` says why it may differ from what was applied,
    None when it cannot.
    """
    marker = place.marker
    has_snapshot = marker is not None and marker >= state.generation_seq
    progress = TableProgress(
        PendingChanges(
            state.generation,
            state.generation_seq,
            state.generation_seq,
            has_snapshot=has_snapshot,
            snapshot_lsn=state.after_lsn((marker or 0) + 1),
            takes_repairs=not state.keeps_changes,
        )
    )
    progress.place = place
    if marker is not None and has_snapshot:
        progress.pending.applied_seq = marker
    last = log.tables.get(state.key) if log else None
    progress.stale = doubt if state.state.is_followed else None
    if last is not None and last.path == state.path:
        progress.maintenance = last.maintenance
    if last is None or last.generation != state.generation:
        return progress
    progress.rows_applied, progress.commit_time_us = last.rows_applied, last.commit_time_us
    progress.way = CommitWay(last.way, last.way_reason)
    progress.pending.reported_lsn = last.complete_through_lsn
    was_stale = last.state == State.STALE and last.why is not None and last.why.code not in _SEEN_AGAIN
    if was_stale and state.state.is_followed:
        progress.stale = last.why
    elif has_snapshot and last.committed_seq == marker:
        progress.pending.applied_seq = max(progress.pending.applied_seq, last.through_seq)
        progress.pending.confirmed_lsn = last.complete_through_lsn
        # A gap that was closed without a row left no marker.
        progress.pending.snapshot_lsn = state.after_lsn(progress.pending.applied_seq + 1)
    return progress
