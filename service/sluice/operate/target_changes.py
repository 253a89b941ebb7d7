"""What becomes of lake tables when the applier starts with other targets than those that it reported last. Pure.

Owns that a preview follows from what the start itself goes by: the manifest, the applier's last report, what the spool
still has, and the configuration. What a lake table holds that was no target any more is not in the report, and neither
what of its layout a lake table lacks that the configuration asked for before: the report of maintenance tells that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.lake_layout import WITHOUT, LakeLayout
from sluice.contract.lake_targets import LakeTarget, held_as
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
        found = _added(state, log, holders, pruned_seq=pruned_seq) if row is None else _kept(state, row)
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
    if state.keeps_changes and state.gaps:
        return Preview("stop", _stale(state, "changes since the snapshot are lost"))
    if state.path in log.left.values():
        return Preview(
            "followed",
            f"it is a target again, and continues at {state.path} where it stopped if it holds a "
            f"{held_as(fed(state))[0]} and the spool still has all that came since; otherwise it is stale, and "
            f"{_RESYNC.format(table=state.source_name)}",
        )
    if state.generation_seq <= pruned_seq:
        return Preview("stop", _stale(state, "the spool no longer has the snapshot and all that came since"))
    return Preview("followed", f"it is added at {state.path}, and built from the spool")


def _stale(state: TableState, why: str) -> str:
    return f"it is added at {state.path} and stale, because {why}; {_RESYNC.format(table=state.source_name)}"


def _kept(state: TableState, row: AppliedTable) -> Preview | None:
    """What becomes of a lake table that the applier knows."""
    if row.generation != state.generation or row.delta_version < 0:
        return None  # It is made anew, as it is configured then.
    seen = row.why is not None and row.why.code is ReasonCode.OTHER_MODE
    held = row.why.parameters["held"] if seen and row.why is not None else row.mode
    wanted = held_as(fed(state))
    if held in wanted:
        said = [*_kind_settings(fed(state), row), *_layout(fed(state).layout, row.layout, state.source_name)]
        return Preview("followed", "; ".join(said)) if said else None
    other = Reason(ReasonCode.OTHER_MODE, {"held": held, "wanted": wanted[0]})
    return Preview("stop", sentence(other, State.STALE, state.source_name))


def _kind_settings(target: LakeTarget, row: AppliedTable) -> Iterator[str]:
    """No row is read again for any of it."""
    if set(target.track) != set(row.track):
        was, now = ((", ".join(one) or "all columns") for one in (row.track, target.track))
        yield f"track was {was} and is {now} for changes that are applied from then on; older versions stay"
    if target.soft_delete_retention != row.soft_delete_retention:
        if target.soft_delete_retention is None:
            yield "deleted rows are kept from then on"
        else:
            yield "rows that were deleted longer ago than the new soft_delete_retention are removed"


def _layout(now: LakeLayout, was: LakeLayout, name: str) -> Iterator[str]:
    """What the applier does, and what waits for somebody."""
    properties, before = dict(now.properties), dict(was.properties)
    changed = sorted(one for one in properties if one not in WITHOUT and properties[one] != before.get(one))
    if changed:
        yield f"properties are set: {', '.join(changed)}"
    if left := sorted(before.keys() - properties.keys() - WITHOUT.keys()):
        yield f"properties stay in the lake table until somebody unsets them: {', '.join(left)}"
    if features := sorted(now.without ^ was.without):
        yield (
            f"{', '.join(features)}: holds when the lake table is made again (`sluice rebuild {name}`, "
            "or another name for the target)"
        )
    if now.partition_by != was.partition_by:
        old, new = ((", ".join(one) or "no column") for one in (was.partition_by, now.partition_by))
        yield f"partition_by was {old} and is {new} from the next snapshot on: `sluice resync {name}`"
    if now.cluster_by and now.cluster_by != was.cluster_by:
        once = "after that snapshot" if was.partition_by else "and nothing is rewritten at once"
        yield f"OPTIMIZE clusters by {', '.join(now.cluster_by)}, {once}"
    elif was.cluster_by and not now.cluster_by:
        until = "that snapshot" if now.partition_by else "somebody ends it"
        yield f"the clustering by {', '.join(was.cluster_by)} stays until {until}"
