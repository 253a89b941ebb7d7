"""What a pruning would take from people: which lake tables could no longer be made from the spool, and from which
position on the history of rows is still there.

Invariant: a table is said to stay rebuildable only when no object of its present generation is pruned, or would be.
Objects that are missing for another reason are the business of `spool verify`. Reads only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sluice.manifest import entry_lookup
from sluice.manifest.pruning import FOR_EVER, Plan
from sluice.manifest.reader import load_state, objects_pruned_through, pruned_through, read_entries
from sluice.manifest.rebuilding import segments_of
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice.store.calls import together

THREADS = 16


class Effect(StrEnum):
    """Whether a lake table can be made from the spool, now and after the pruning."""

    KEEPS = "keeps"
    LOSES = "loses"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TableEffect:
    """`until` (ISO 8601 UTC) is the earliest moment at which the retention takes it from a table that keeps it, None
    where that cannot be said: for ever, or not while something else holds the spool.
    """

    table: str
    generation_seq: int
    effect: Effect
    until: str | None


def effects(store: ObjectStore, plan: Plan, *, keep_seconds: float) -> list[TableEffect]:
    """Of every table that is applied, by name. Raises ManifestCorrupt, FormatTooNew, StoreError."""
    # In this order: what is pruned after the state was read is not taken for what this pruning takes.
    state = load_state(store)
    floor, pruned = pruned_through(store), objects_pruned_through(store)
    tables = sorted(
        (table for table in state.tables.values() if table.state.is_applied and table.schemas),
        key=lambda table: table.source_name,
    )
    first = _first_objects(store, tables, after_seq=floor, last_seq=max(plan.through_seq, pruned))
    found = {table.table_id: _effect(table, first.get(table.table_id), floor=floor, pruned=pruned) for table in tables}
    kept = [table.generation_seq for table in tables if found[table.table_id] == Effect.KEEPS]
    until = _until(store, kept, keep_seconds=keep_seconds)
    return [
        TableEffect(
            table.source_name,
            table.generation_seq,
            found[table.table_id],
            until.get(table.generation_seq) if found[table.table_id] == Effect.KEEPS else None,
        )
        for table in tables
    ]


def _effect(table: TableState, first_seq: int | None, *, floor: int, pruned: int) -> Effect:
    if table.generation_seq <= floor or (first_seq is not None and first_seq <= pruned):
        return Effect.LOST
    return Effect.KEEPS if first_seq is None else Effect.LOSES


def _first_objects(store: ObjectStore, tables: list[TableState], *, after_seq: int, last_seq: int) -> dict[str, int]:
    """The first entry after `after_seq` that has an object of the present generation, by table, for those that have
    one through `last_seq`.
    """
    wanted = {table.table_id: table for table in tables if after_seq < table.generation_seq <= last_seq}
    first: dict[str, int] = {}
    if not wanted:
        return first
    begin = min(table.generation_seq for table in wanted.values())
    for entry, _ in read_entries(store, after_seq=begin - 1, limit=last_seq - begin + 1):
        for table_id, table in list(wanted.items()):
            if entry.seq >= table.generation_seq and any(True for _ in segments_of(entry, table)):
                first[table_id] = entry.seq
                del wanted[table_id]
        if not wanted:
            break
    return first


def _until(store: ObjectStore, numbers: Iterable[int], *, keep_seconds: float) -> dict[int, str]:
    """When the entries with these numbers are older than the retention."""
    if keep_seconds == FOR_EVER:
        return {}
    wanted = sorted(set(numbers))
    links = together(lambda seq: entry_lookup.find(store, seq), wanted, threads=THREADS)
    moments = {
        seq: _moment(link.entry.written_at, keep_seconds)
        for seq, link in zip(wanted, links, strict=True)
        if link is not None
    }
    return {seq: moment for seq, moment in moments.items() if moment is not None}


def _moment(written_at: str, keep_seconds: float) -> str | None:
    """None for a time that cannot be read, whose entry counts as young for ever, or one past the calendar."""
    try:
        moment = datetime.fromisoformat(written_at).astimezone(UTC) + timedelta(seconds=keep_seconds)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.isoformat(timespec="seconds")
