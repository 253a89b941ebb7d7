"""What is wrong with a pipeline, from every side that knows something of it, in one list.

Invariant: each item says what a person can do. Tables that share a state and a reason are one item with a count: a thousand must not bury the slot.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from service.errors import SlotLost
from service.runtime.incidents import Incident
from service.runtime.tablereport import TableReport

_NAMED = 3
_STOPPED = {
    "stale": ("StaleTable", "`sluice copy` with the table's name copies it again while everything else goes on"),
    "quarantined": ("QuarantinedTable", "correct what the reason says, then `sluice copy` with the table's name"),
}
"""By state: the class under which it is shown, and what to do."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """What could not be asked, and why."""

    what: str
    error: str
    why: str
    hint: str


def troubles(*, trouble: SlotLost | None, unreachable: Iterable[Unreachable], tables: Iterable[TableReport], noted: Iterable[Incident]) -> tuple[Incident, ...]:
    """The slot first, then what could not be reached, then tables that stopped, then what the running process met."""
    lost = [Incident("SlotLost", "slot", str(trouble), trouble.hint, 1)] if trouble is not None else []
    away = [Incident(item.error, item.what, item.why, item.hint, 1) for item in unreachable]
    return (*lost, *away, *_stopped(tables), *noted)


def _stopped(tables: Iterable[TableReport]) -> list[Incident]:
    groups: dict[tuple[str, str], list[str]] = {}
    for table in tables:
        if table.state in _STOPPED:
            groups.setdefault((table.state, table.reason), []).append(f"{table.schema}.{table.table}")
    found = []
    for (state, reason), names in groups.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        error, hint = _STOPPED[state]
        found.append(Incident(error, ", ".join(names[:_NAMED]) + more, reason, hint, len(names)))
    return found
