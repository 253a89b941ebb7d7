"""What becomes of lake tables when the applier starts with other targets than those that it reported last. Pure.

Owns that a preview follows from what the start itself goes by: the manifest, the applier's last report, what the spool
still has, and the configuration. Settings that stop no lake table and read no row (`track`, the layout, how long rows
stay) are not compared: the report does not have them, and neither what a lake table holds that was no target any more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.lake_targets import held_as
from sluice.contract.reasons import Reason, ReasonCode, sentence
from sluice.contract.table_state import State
from sluice.manifest.targets import TargetsOf, clashing, fed, lake_tables
from sluice.manifest.values import PipelineState, TableState
from sluice.tables.preview import Preview

_RESYNC = "`sluice resync {table}` would then take a new snapshot"


def target_changes(
    manifest: PipelineState, configured: TargetsOf, log: AppliedLog, *, pruned_seq: int
) -> Iterator[tuple[TableState, Preview]]:
    """For each lake table of which the configuration says something else than `log`, its source table and what would
    become of it. Objects that entries through `pruned_seq` name are not in the spool any more.
    """
    states = lake_tables(manifest, configured)
    fed_before = {row.table_id for row in log.tables.values()}
    holders = clashing(states, log.tables)
    for key, state in states.items():
        table = manifest.tables[state.table_id]
        if state.table_id not in fed_before or not state.state.is_followed or not state.schemas:
            continue
        row = log.tables.get(key)
        found = _added(state, log, holders, pruned_seq=pruned_seq) if row is None else _kind(state, row)
        if found is not None:
            yield table, replace(found, why=f"lake table {state.title}: {found.why}")
    for key, row in log.tables.items():
        left = manifest.tables.get(row.table_id)
        if key not in states and left is not None and left.state.is_followed:
            why = f"lake table {row.title}: it is no target any more; it stays at {row.path} and gets no more changes"
            yield left, Preview("stop", why)


def _added(state: TableState, log: AppliedLog, holders: Mapping[str, TableState], *, pruned_seq: int) -> Preview:
    if (holder := holders.get(state.key)) is not None:
        taken = Reason(ReasonCode.PATH_TAKEN, {"path": state.path, "other": holder.title})
        return Preview("stop", sentence(taken, State.STALE, state.source_name))
    if state.path in log.left.values():
        return Preview(
            "followed",
            f"it is a target again, and continues at {state.path} where it stopped if it holds a "
            f"{held_as(fed(state))[0]} and the spool still has all that came since; otherwise it is stale, and "
            f"{_RESYNC.format(table=state.source_name)}",
        )
    if state.generation_seq <= pruned_seq:
        return Preview("stop", _stale(state, "the spool no longer has the snapshot and all that came since"))
    if state.keeps_changes and state.gaps:
        return Preview("stop", _stale(state, "changes since the snapshot are lost"))
    return Preview("followed", f"it is added at {state.path}, and built from the spool")


def _stale(state: TableState, why: str) -> str:
    return f"it is added at {state.path} and stale, because {why}; {_RESYNC.format(table=state.source_name)}"


def _kind(state: TableState, row: AppliedTable) -> Preview | None:
    """What becomes of a lake table that the applier knows."""
    if row.generation != state.generation or row.delta_version < 0:
        return None  # It is made anew, in the kind that is configured then.
    seen = row.why is not None and row.why.code is ReasonCode.OTHER_MODE
    held = row.why.parameters["held"] if seen and row.why is not None else row.mode
    wanted = held_as(fed(state))
    if held in wanted:
        return None
    other = Reason(ReasonCode.OTHER_MODE, {"held": held, "wanted": wanted[0]})
    return Preview("stop", sentence(other, State.STALE, state.source_name))
