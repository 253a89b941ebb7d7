"""Through where the catalog was examined, as a state of the manifest says it. Pure."""

from sluice.contract.entries import Entry
from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState, TableState


def held_lsn(state: PipelineState, before: TableState | None) -> int:
    """That of a table after `state`, in which it was `before`. See TableState."""
    return state.examined_lsn if before is None or before.state == State.LIVE else before.held_lsn


def unexamined_since(state: PipelineState, entry: Entry) -> str:
    """That of the state after `entry`. See PipelineState."""
    if entry.examined_lsn == entry.through_lsn:
        return ""
    return state.unexamined_since if entry.examined_lsn == state.examined_lsn < state.through_lsn else entry.written_at
