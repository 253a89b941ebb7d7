"""Why a table is in its state: a code with parameters, stored in the manifest and in the applier's log, and
the only place that makes a sentence of it. Pure.

Invariant: whoever decides anything compares codes. A sentence is made where it is shown, from what is true
then: a table that was renamed has its present name in it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State


class ReasonCode(StrEnum):
    """The first ones are those of `Cause`: of a stale table, of a gap, and of a generation that is not the
    first. The parameter `what` says what exactly happened, and has the words of a server or of an error.
    """

    REWRITE = Cause.REWRITE.value
    SCHEMA = Cause.SCHEMA.value
    KEY = Cause.KEY.value
    TYPE = Cause.TYPE.value
    PARTITION = Cause.PARTITION.value
    PUBLICATION = Cause.PUBLICATION.value
    RENAME = Cause.RENAME.value
    VALUE = Cause.VALUE.value
    UNREADABLE = Cause.UNREADABLE.value
    GAP = Cause.GAP.value
    CONTRACT = Cause.CONTRACT.value
    INTERRUPTED = Cause.INTERRUPTED.value
    RULES = Cause.RULES.value
    REQUEST = Cause.REQUEST.value
    RECOVERED = Cause.RECOVERED.value
    # of ingest
    CONDITION = "condition"
    SNAPSHOT_WAITS = "snapshot_waits"
    SHAPE_AWAITED = "shape_awaited"
    DROPPED = "dropped"
    UNPUBLISHED = "unpublished"
    UNSELECTED = "unselected"
    MESSAGES_OFF = "messages_off"
    PAUSED = "paused"
    # of the applier
    NOT_APPLIED = "not_applied"
    GAP_NOT_APPLIED = "gap_not_applied"
    FAILING = "failing"
    LAKE_UNREADABLE = "lake_unreadable"
    LAKE_DIFFERS = "lake_differs"
    OTHER_MODE = "other_mode"
    PATH_TAKEN = "path_taken"
    PRUNED = "pruned"


_TEXTS = {
    ReasonCode.CONDITION: "{what}",
    ReasonCode.SNAPSHOT_WAITS: "its snapshot cannot be taken, and is tried again: {what}",
    ReasonCode.SHAPE_AWAITED: "its columns changed at the source, and the stream has not reached the position of "
    "that change yet",
    ReasonCode.DROPPED: "dropped at the source",
    ReasonCode.UNPUBLISHED: "publication {publication} no longer carries it",
    ReasonCode.UNSELECTED: "source.tables no longer selects it",
    ReasonCode.MESSAGES_OFF: "source.messages is false: what is emitted now is not kept",
    ReasonCode.PAUSED: "paused on request; what came since waits in the spool (rows: {rows}, {mebibytes} MiB), and "
    "`sluice tables resume {table}` applies it",
    ReasonCode.NOT_APPLIED: "the applier has not begun with it yet",
    ReasonCode.GAP_NOT_APPLIED: "the rows that close its gap are not in the lake yet",
    ReasonCode.FAILING: "attempt {attempt} failed: {what}; the next one is due at {again}",
    ReasonCode.LAKE_UNREADABLE: "the lake table could not be read at start: {what}",
    ReasonCode.LAKE_DIFFERS: "{what}",
    ReasonCode.OTHER_MODE: "the lake table holds a {held}, but the configured kind is {wanted}; restore the old "
    "kind; otherwise {remedy}, in the new one",
    ReasonCode.PATH_TAKEN: "its lake table would be at {path}, where that of {other} is; give the target "
    "another name and restart the applier",
    ReasonCode.PRUNED: "its lake table is at manifest entry {entry}, and the entries after it were pruned "
    "through entry {floor}; {remedy}",
}
_OF_A_CAUSE = {
    State.STALE: "{what}; {remedy}",
    State.GAP: "{what}; `sluice verify --repair` compares it and reads again the rows that differ",
    State.SNAPSHOT: "read again: {what}",
}
"""By the state that the cause led to; in any other one it is said alone."""


@dataclass(frozen=True, slots=True)
class Reason:
    code: ReasonCode
    parameters: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(cause: Cause, what: str) -> "Reason":
        return Reason(ReasonCode(cause), {"what": what})

    @property
    def what(self) -> str:
        """What exactly happened, empty where the code says it all."""
        return self.parameters.get("what", "")


DROPPED, UNSELECTED = Reason(ReasonCode.DROPPED), Reason(ReasonCode.UNSELECTED)


def unpublished(publication: str) -> Reason:
    return Reason(ReasonCode.UNPUBLISHED, {"publication": publication})


def lake_differs(error: Exception) -> Reason:
    """Of a table whose lake table cannot be brought to what the source has."""
    return Reason(ReasonCode.LAKE_DIFFERS, {"what": str(error)})


def sentence(why: Reason | None, state: State, table: str, *, resync_at: str = "", remedy: str = "") -> str:
    """Why `table` is in `state`, for people; empty for no reason. `resync_at` is when it is read again by itself,
    `remedy` what to do about a stale one if it cannot be read again at all.
    """
    if why is None:
        return ""
    text = _TEXTS.get(why.code) or _OF_A_CAUSE.get(state, "{what}")
    return text.format_map({**why.parameters, "table": table, "remedy": remedy or _remedy(table, resync_at)})


def _remedy(table: str, resync_at: str) -> str:
    """What happens to a stale table."""
    command = f"`sluice resync {table}`"
    if resync_at:
        return f"it is read again from a new snapshot at {resync_at}, or at once by {command}"
    return f"{command} takes a new snapshot of it"
