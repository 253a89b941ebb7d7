"""What the applier starts with: every table as it stands, and those that an operator wants made again from the spool
as tables that have no snapshot yet.

Owns the order for the latter: first the spool is found to have everything, then no report speaks of the lake table
any more, because pruning goes by it, then the log of the lake table goes, which is all that makes it a table. From then
on it is one that has no snapshot yet. A kill in between leaves what the same command, or the next applier, goes on
from. Its data files are removed by VACUUM.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.reasons import lake_differs, sentence
from sluice.contract.replay import ANEW
from sluice.contract.table_state import State
from sluice.errors import ApplyError, UnsupportedChange, UsageError
from sluice.manifest import rebuilding
from sluice.manifest.reader import load_ending, load_state, objects_pruned_through, pruned_through
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore
from sluice_spark.kinds.registry import kind_of
from sluice_spark.lake.failures import SparkGone
from sluice_spark.lake.opening import Lake
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import find_tables
from sluice_spark.progress.table_progress import TableProgress
from sluice_spark.telemetry import ApplyTelemetry

_log = structlog.get_logger("sluice.apply")


def open_ledger(
    options: ApplyOptions,
    store: ObjectStore,
    log: AppliedLog | None,
    *,
    lake: Lake,
    session: SparkSession,
    telemetry: ApplyTelemetry,
    report: Callable[[AppliedLog, PipelineState], None],
) -> tuple[Ledger, AppliedLog | None]:
    """Every table as it stands now, `log` being what was last reported, and what of that holds. `report` makes known
    what alone still holds of the manifest, before a lake table is removed. Raises SparkGone, ManifestCorrupt,
    FormatTooNew, StoreError; UsageError when a table cannot be made again as the options ask.
    """
    # In this order: what is pruned after the state was read is not needed by it.
    manifest = load_ending(store, options.ending) if options.ending is not None else load_state(store)
    ledger, floor_seq = Ledger(options, manifest), pruned_through(store)
    horizon_seq = objects_pruned_through(store)
    if log is not None and options.ending is None and not _is_of(log, manifest, lake=lake, floor_seq=floor_seq):
        _log.warning("the spool does not have what the last report speaks of: each lake table is read by its own log")
        log = _without_progress(log, floor_seq=floor_seq)
    if options.rebuild:
        log = _begin_again(store, lake, session, ledger, log, wanted=options.rebuild, report=report)
    if options.rebuild or options.ending is not None:
        # The spool was found to have everything.
        horizon_seq = floor_seq
    remedy = ANEW if options.ending is not None else ""
    found = find_tables(
        ledger.state.tables,
        log,
        lake=lake,
        session=session,
        telemetry=telemetry,
        floor_seq=floor_seq,
        horizon_seq=horizon_seq,
        remedy=remedy,
    )
    if options.ending is None:
        _stop_ahead(found, ledger.state.tables, store, manifest)
    ledger.begin(found, floor_seq=floor_seq)
    for state in ledger.separate(log.tables if log else ()):
        why = sentence(ledger.tables[state.key].stale, State.STALE, state.source_name, remedy=remedy)
        _log.error("table is stale", table=state.title, error=why)
    return ledger, log


def _stop_ahead(
    found: Mapping[str, TableProgress], states: Mapping[str, TableState], store: ObjectStore, manifest: PipelineState
) -> None:
    """A lake table that names an entry which the manifest does not have is stale: an older copy of the spool was
    restored, and the numbers up to there, which come again, would be taken for applied. Raises ManifestCorrupt,
    FormatTooNew, StoreError.
    """
    ahead = {key: one for key, one in found.items() if (one.place.marker or 0) > manifest.seq}
    # Another applier may have been at work until now, and what it committed was in the manifest before.
    end_seq = load_state(store, known=manifest).seq if ahead else 0
    for key, progress in ahead.items():
        state, marker = states[key], progress.place.marker or 0
        if marker > end_seq and state.state.is_followed and progress.stale is None:
            said = (
                f"the lake table has manifest entry {marker}, and the manifest ends with entry {end_seq}: an older "
                "copy of the spool was restored"
            )
            progress.stale = lake_differs(UnsupportedChange(said))
            why = sentence(progress.stale, State.STALE, state.source_name)
            _log.error("table is stale", table=state.title, error=why)


def _is_of(log: AppliedLog, manifest: PipelineState, *, lake: Lake, floor_seq: int) -> bool:
    """Whether what `log` says of entries is of these entries. The store may have been restored object by object, and a
    report is then newer than the entries. Raises ManifestCorrupt, FormatTooNew, StoreError.
    """
    if log.seq <= floor_seq or (log.seq, log.sha256) == (manifest.seq, manifest.previous_sha256):
        return True
    # Another applier may have reported since the manifest was read.
    return lake.entries.of(log.seq) == log.sha256


def _without_progress(log: AppliedLog, *, floor_seq: int) -> AppliedLog:
    """`log` without what it says of entries and versions. What was pruned before the copy was made, the lake had: a
    table of which nothing came since goes on from the first entry that is there.
    """

    def without(row: AppliedTable) -> AppliedTable:
        if 0 < row.committed_seq <= floor_seq:
            # Not its version: until then, commits of lost entries may have changed the columns.
            through_seq = min(row.through_seq, floor_seq + 1)
            return replace(row, delta_version=-1, through_seq=through_seq, complete_through_lsn=0)
        return replace(row, delta_version=-1, committed_seq=0, through_seq=0, complete_through_lsn=0)

    return replace(log, tables={key: without(row) for key, row in log.tables.items()})


def left_behind(ledger: Ledger, log: AppliedLog | None) -> dict[str, str]:
    """The lake tables that `log` knows and the configuration does not, by title, with their paths. They stay."""
    if log is None:
        return {}
    used = {state.path for state in ledger.state.tables.values()}
    known = {row.title: row.path for key, row in log.tables.items() if key not in ledger.state.tables}
    left = {title: path for title, path in {**log.left, **known}.items() if path not in used}
    for title in left.keys() - log.left.keys():
        _log.warning("a lake table is no target any more, and stays as it is", table=title, path=left[title])
    return left


def _begin_again(
    store: ObjectStore,
    lake: Lake,
    session: SparkSession,
    ledger: Ledger,
    log: AppliedLog | None,
    *,
    wanted: tuple[str, ...],
    report: Callable[[AppliedLog, PipelineState], None],
) -> AppliedLog | None:
    """Removes the lake tables of the tables `wanted` (schema.table) and returns the report without them. One that keeps
    rows which the spool does not have stays as it is. Raises UsageError when one of the tables cannot be made from the
    spool, and nothing was removed then; WriterFenced, StoreError.
    """
    named = {table.source_name: table for table in ledger.manifest.tables.values() if table.is_applied}
    unknown = [name for name in wanted if name not in named]
    if unknown:
        raise UsageError(f"{unknown[0]} is not a table that is applied now", hint="`sluice tables` lists the tables")
    plans = {name: rebuilding.plan(store, ledger.manifest, named[name]) for name in wanted}
    chosen = {name: _replaceable(lake, session, ledger, name) for name in wanted}
    if log is not None:
        keys = {one.key for found in chosen.values() for one in found}
        log = replace(log, tables={key: row for key, row in log.tables.items() if key not in keys})
        report(log, ledger.manifest)
    for name, plan in plans.items():
        lake.require_owner()
        removed = [key for one in chosen[name] for key in removal_order(lake.files.list(f"{one.path}/_delta_log/"))]
        for key in removed:
            lake.files.delete(key)
        _log.warning(
            "a lake table is made again from the spool",
            table=name,
            from_seq=plan.first_seq,
            segments=plan.segments,
            bytes=plan.bytes,
            removed=len(removed),
        )
    faults.point("apply.rebuild.removed")
    return log


def removal_order(keys: Iterable[str]) -> list[str]:
    """The objects of one Delta log, so that a kill between any two of them leaves no table, or a whole one as of an
    earlier version: a log without its beginning has the newest marker, and nobody can read it.
    """
    names = {key: key.rpartition("/_delta_log/")[2] for key in keys}
    commits = [key for key, name in names.items() if name[:20].isdecimal()]
    whole = max((names[key][:20] for key in commits if ".checkpoint" in names[key]), default="")

    def turn(key: str) -> int:
        if key in commits:
            return 1 if names[key][:20] < whole else 2
        return 0 if names[key] == "_last_checkpoint" else 3

    return sorted(sorted(names, reverse=True), key=turn)


def _replaceable(lake: Lake, session: SparkSession, ledger: Ledger, name: str) -> list[TableState]:
    """The lake tables of the source table `name` that the spool has all of. Raises UsageError when there is none."""
    every = [state for state in ledger.state.tables.values() if state.is_applied and state.source_name == name]
    kept = {state.title: why for state in every if (why := _outlives(lake, session, state))}
    if len(kept) == len(every):
        raise UsageError("; ".join(f"{title} {why}" for title, why in kept.items()), hint=_ANEW)
    for title, why in kept.items():
        _log.warning("a lake table stays as it is", table=title, reason=why, hint=_ANEW)
    return [state for state in every if state.title not in kept]


_ANEW = "to make it again without them, remove its folder first"


def _outlives(lake: Lake, session: SparkSession, state: TableState) -> str:
    """Why the lake table of `state` cannot be made again as it is, empty when it can."""
    if state.keeps_changes and state.gaps:
        return "has changes that cannot be made again, because others since its snapshot are lost"
    if not kind_of(state, state.schemas[state.schema_version]).keeps_rows:
        return ""
    try:
        if not lake.outlives(state, session):
            return ""
    except SparkGone:
        raise
    except (ApplyError, UnsupportedChange) as error:
        return f"may keep rows from before the snapshot, which the spool does not have, and cannot be read: {error}"
    return "keeps rows from before the snapshot, which the spool does not have"
