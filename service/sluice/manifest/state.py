"""What the manifest says, reduced entry by entry. Pure.

Invariant: `reduce` accepts only an entry that may follow: dense number, the chain's hash, the epoch
in force (or `opened` with the next one), the position that the entry before ended at and none
before it, transactions that are neither in the manifest already nor beyond what the entry declares,
tables and schema versions that exist. Anything else is ManifestCorrupt with the number of the
entry, before it is stored when we write and before it is used when we read.
"""

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from sluice.contract import codec
from sluice.contract.entries import (
    FATES,
    Changes,
    Entry,
    Opened,
    Prepared,
    Progress,
    Segment,
    Snapshot,
    Table,
)
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.lsn import show

MOVING = (Changes, Progress)
"""Entries that move the position. Of the others only the first `opened` does: it says where the log
begins.
"""
SNAPSHOT_WAITS = "its snapshot cannot be taken, and is tried again: "
"""How the reason of a table begins whose snapshot failed for something that is not the table's."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The snapshot of a table's present generation: all of it is at one snapshot."""

    snapshot_lsn: int
    schema_version: int
    segments: int
    rows: int
    final: bool = False


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as of the last entry. `generation_seq` is the number of the Table entry that began
    the generation, `lsn` and `reason` belong to `state`.

    A change of shape leaves `lsn` alone: what committed at or before it is in the snapshot.
    `schema_lsn` is where the newest shape came into force, 0 while there was no other in this
    generation. `schemas` holds every version ever introduced. `relfilenode` and `fingerprint` are
    the last known ones. `since` is when `state` began, as the entry says that put the table into it
    (ISO 8601 UTC).
    """

    table_id: str
    schema_name: str
    table_name: str
    state: State
    reason: str
    lsn: int
    generation: int
    generation_seq: int
    schemas: dict[int, TableSchema]
    schema_lsn: int = 0
    relfilenode: int = 0
    fingerprint: str = ""
    snapshot: SnapshotState | None = None
    since: str = ""

    @property
    def schema_version(self) -> int:
        """The newest schema version, 0 before the first."""
        return max(self.schemas, default=0)

    @property
    def publishes(self) -> str:
        """A letter for each kind of change that the publication sends (i u d t), as the catalog was
        last looked at; empty when it never was.
        """
        return str(json.loads(self.fingerprint).get("publishes", "")) if self.fingerprint else ""


@dataclass(frozen=True, slots=True)
class PipelineState:
    """Everything that must survive, as of entry `seq` (0: no manifest yet). `opened` is the newest.
    Never changed in place.

    `prepared` are the transactions that were prepared and have not ended, by (gid, end LSN of the
    PREPARE).
    """

    seq: int = 0
    epoch: int = 0
    previous_sha256: str = ""
    through_lsn: int = 0
    opened: Opened | None = None
    tables: dict[str, TableState] = field(default_factory=dict)
    prepared: dict[tuple[str, int], Prepared] = field(default_factory=dict)


def reduce(state: PipelineState, entry: Entry, entry_sha256: str) -> PipelineState:
    """The state after `entry`, whose stored bytes have the digest `entry_sha256`. Raises
    ManifestCorrupt; `state` stays as it is.
    """
    _check_link(state, entry)
    opened, tables, prepared = state.opened, state.tables, state.prepared
    match entry.body:
        case Opened():
            opened = entry.body
            if state.opened is not None and (state.opened.origin, opened.origin) == ("none", "any"):
                tables = {table_id: _lacking_origins(table, entry.through_lsn) for table_id, table in tables.items()}
        case Changes():
            _check_changes(state, entry, entry.body)
            prepared = _prepared(state, entry, entry.body)
        case Table():
            tables = {**tables, entry.body.table_id: _table(entry, tables.get(entry.body.table_id), entry.body)}
        case Snapshot():
            tables = {
                **tables,
                entry.body.table_id: _with_snapshot(entry.seq, tables.get(entry.body.table_id), entry.body),
            }
    return PipelineState(
        seq=entry.seq,
        epoch=entry.epoch,
        previous_sha256=entry_sha256,
        through_lsn=entry.through_lsn,
        opened=opened,
        tables=tables,
        prepared=prepared,
    )


def _check_link(state: PipelineState, entry: Entry) -> None:
    if entry.seq != state.seq + 1:
        raise ManifestCorrupt(f"manifest entry {state.seq + 1} calls itself {entry.seq}")
    if entry.previous_sha256 != state.previous_sha256:
        raise _corrupt(entry.seq, f"does not continue entry {state.seq}: one of the two was replaced or damaged")
    if isinstance(entry.body, Opened):
        if entry.epoch != state.epoch + 1:
            raise _corrupt(entry.seq, f"opens epoch {entry.epoch} after epoch {state.epoch}")
    elif entry.epoch != state.epoch or state.opened is None:
        raise _corrupt(entry.seq, f"was written in epoch {entry.epoch}, in force is epoch {state.epoch}")
    check_positions(entry, after=state.through_lsn)
    if entry.through_lsn != entry.from_lsn and not (isinstance(entry.body, MOVING) or state.opened is None):
        raise _corrupt(
            entry.seq,
            f"of kind {entry.body.kind} moves the position, which only "
            f"{' and '.join(kind.kind for kind in MOVING)} entries may",
        )


def check_positions(entry: Entry, *, after: int) -> None:
    """Raises ManifestCorrupt unless `entry` continues at `after`, where the entry before it ended,
    and does not go back.
    """
    if entry.from_lsn != after:
        raise _corrupt(
            entry.seq,
            f"continues from {show(entry.from_lsn)}, but what came before it ends at {show(after)}: the changes in "
            "between are in no entry",
        )
    if entry.through_lsn < entry.from_lsn:
        raise _corrupt(entry.seq, f"goes back to an earlier position than {show(after)}")


def _check_changes(state: PipelineState, entry: Entry, changes: Changes) -> None:
    """Each transaction is stored once: it ended after what the manifest had, and no later than what
    this entry declares.
    """
    own_range = f"({show(state.through_lsn)}, {show(entry.through_lsn)}]"
    for segment in changes.segments:
        _check_segment(entry.seq, state.tables.get(segment.table_id), segment)
        if not state.through_lsn < segment.first_lsn <= segment.last_lsn <= entry.through_lsn:
            raise _corrupt(entry.seq, f"holds changes of table {segment.table_id} outside its own range {own_range}")
    ends = changes.commits.end_lsn
    if len(ends) and not (state.through_lsn < ends[0] and ends[-1] <= entry.through_lsn):
        raise _corrupt(entry.seq, f"holds transactions outside its own range {own_range}")
    if not all(before < after for before, after in pairwise(ends)):
        raise _corrupt(entry.seq, "holds transactions out of commit order")


def _prepared(state: PipelineState, entry: Entry, changes: Changes) -> dict[tuple[str, int], Prepared]:
    """The open prepared transactions after `changes`. One may be older than the entry's own range:
    a slot that began to decode at PREPARE sends it late.
    """
    if not changes.prepared and not changes.ended:
        return state.prepared
    still_open = dict(state.prepared)
    for end in changes.ended:
        if end.fate not in FATES or still_open.pop((end.gid, end.end_lsn), None) is None:
            raise _corrupt(entry.seq, f"ends a prepared transaction that is not open, prepared at {show(end.end_lsn)}")
    for transaction in changes.prepared:
        if transaction.end_lsn > entry.through_lsn or any(gid == transaction.gid for gid, _ in still_open):
            raise _corrupt(
                entry.seq,
                "holds a prepared transaction beyond its range, or one whose gid is in use, prepared "
                f"at {show(transaction.end_lsn)}",
            )
        still_open[transaction.gid, transaction.end_lsn] = transaction
    return still_open


def _check_segment(seq: int, table: TableState | None, segment: Segment) -> None:
    if table is None:
        raise _corrupt(seq, f"refers to the unknown table {segment.table_id}")
    if segment.schema_version not in table.schemas:
        raise _corrupt(
            seq, f"refers to the unknown schema version {segment.schema_version} of table {segment.table_id}"
        )


def _table(entry: Entry, old: TableState | None, new: Table) -> TableState:
    seq = entry.seq
    if old is not None and new.generation < old.generation:
        raise _corrupt(seq, f"takes table {new.table_id} back from generation {old.generation} to {new.generation}")
    begins = old is None or new.generation > old.generation
    known = old if old is not None and not begins else None
    reshaped = known is not None and new.schema is not None and new.state == known.state
    return TableState(
        table_id=new.table_id,
        schema_name=new.schema_name,
        table_name=new.table_name,
        state=new.state,
        reason=new.reason,
        lsn=known.lsn if known and reshaped else new.lsn,
        generation=new.generation,
        generation_seq=known.generation_seq if known else seq,
        schemas=_schemas(seq, old, new),
        schema_lsn=new.lsn if reshaped else known.schema_lsn if known else 0,
        relfilenode=new.relfilenode or (old.relfilenode if old else 0),
        fingerprint=new.fingerprint or (old.fingerprint if old else ""),
        snapshot=known.snapshot if known else None,
        since=known.since if known is not None and known.state == new.state else entry.written_at,
    )


def _schemas(seq: int, old: TableState | None, new: Table) -> dict[int, TableSchema]:
    known = old.schemas if old else {}
    if new.schema is None or known.get(new.schema.version) == new.schema:
        return known
    if new.schema.table_id != new.table_id or new.schema.version != max(known, default=0) + 1:
        raise _corrupt(
            seq, f"introduces schema version {new.schema.version} of table {new.table_id} after {max(known, default=0)}"
        )
    return {**known, new.schema.version: new.schema}


def _lacking_origins(table: TableState, lsn: int) -> TableState:
    """In the entry that asks for every origin, so that no writer can die between asking and saying
    what is missing.
    """
    if not table.state.is_followed or table.snapshot is None or not table.snapshot.final:
        return table
    reason = "source.origin was none: what replication brought to the source meanwhile was not sent"
    return replace(
        table, state=State.STALE, reason=f"{reason}; {resync_remedy(table.schema_name, table.table_name)}", lsn=lsn
    )


def resync_remedy(schema_name: str, table_name: str) -> str:
    """What to do about a stale table, as its reason says it."""
    return f"`sluice resync {schema_name}.{table_name}` takes a new snapshot of it"


def _with_snapshot(seq: int, table: TableState | None, snapshot: Snapshot) -> TableState:
    if table is None or snapshot.generation != table.generation or snapshot.schema_version not in table.schemas:
        raise _corrupt(
            seq,
            f"is a snapshot of an unknown table, generation or schema version: table {snapshot.table_id}, "
            f"generation {snapshot.generation}",
        )
    for segment in snapshot.segments:
        _check_segment(seq, table, segment)
        if segment.table_id != snapshot.table_id:
            raise _corrupt(
                seq, f"mixes rows of table {segment.table_id} into the snapshot of table {snapshot.table_id}"
            )
    before = table.snapshot or SnapshotState(snapshot.snapshot_lsn, snapshot.schema_version, 0, 0)
    if before.final or (before.snapshot_lsn, before.schema_version) != (snapshot.snapshot_lsn, snapshot.schema_version):
        raise _corrupt(
            seq, f"continues a snapshot of table {snapshot.table_id} that is finished or was taken at another snapshot"
        )
    if table.state != State.SNAPSHOT:
        raise _corrupt(seq, f"is a snapshot of table {snapshot.table_id}, which is {table.state}")
    after = replace(
        table,
        snapshot=replace(
            before,
            segments=before.segments + len(snapshot.segments),
            rows=before.rows + sum(segment.rows for segment in snapshot.segments),
            final=snapshot.final,
        ),
    )
    if not snapshot.final:
        return after
    return replace(
        after,
        state=State.LIVE,
        reason="",
        lsn=snapshot.snapshot_lsn,
        relfilenode=snapshot.relfilenode,
        fingerprint=snapshot.fingerprint,
    )


def _corrupt(seq: int, what: str) -> ManifestCorrupt:
    return ManifestCorrupt(
        f"manifest entry {seq} {what}",
        hint="nothing was acknowledged on its account; restore the manifest or copy again",
    )


def to_json(state: PipelineState) -> dict[str, Any]:
    """For checkpoints. `from_json` gives an equal state back."""
    prepared = codec.to_json(tuple(state.prepared.values()))
    return {**codec.fields_to_json(replace(state, prepared={})), "prepared": prepared}


def from_json(value: dict[str, Any]) -> PipelineState:
    """Raises ManifestCorrupt if a field is missing or of the wrong type."""
    try:
        prepared = codec.from_json(tuple[Prepared, ...], value["prepared"])
        state = codec.from_json(PipelineState, {**value, "prepared": {}})
    except (KeyError, TypeError, codec.Malformed) as error:
        raise ManifestCorrupt("a manifest checkpoint lacks a field or has one of the wrong type") from error
    return replace(state, prepared={(one.gid, one.end_lsn): one for one in prepared})
