"""What the manifest says, reduced entry by entry. Pure.

Invariant: `reduce` accepts only an entry that may follow: dense number, the chain's hash, the epoch
in force (or `opened` with the next one), the position that the entry before ended at and none
before it, transactions that are neither in the manifest already nor beyond what the entry declares,
tables and schema versions that exist. Anything else is ManifestCorrupt with the number of the
entry, before it is stored when we write and before it is used when we read.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sluice.contract import codec
from sluice.contract.chunks import LEAVES_OUT
from sluice.contract.entries import (
    FATES,
    Changes,
    Entry,
    Opened,
    Prepared,
    Progress,
    Repair,
    Segment,
    Snapshot,
    Table,
)
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.lsn import show
from sluice.manifest.examined import held_lsn, unexamined_since
from sluice.manifest.gaps import with_last_closed
from sluice.manifest.lost_changes import broken, lacking_origins, on_its_server, since_the_fork, with_gap
from sluice.manifest.snapshot_state import begun
from sluice.manifest.table_steps import stated
from sluice.manifest.values import Pause, PipelineState, TableState, corrupt

MOVING = (Changes, Progress)
"""Entries that move the position. Of the others only the first `opened` does: the log begins there."""


def reduce(state: PipelineState, entry: Entry, entry_sha256: str) -> PipelineState:
    """The state after `entry`, whose stored bytes have the digest `entry_sha256`. Raises
    ManifestCorrupt; `state` stays as it is.
    """
    _check_link(state, entry)
    return _reduced(state, entry, entry_sha256)


def _reduced(state: PipelineState, entry: Entry, entry_sha256: str) -> PipelineState:
    opened, tables, prepared = state.opened, state.tables, state.prepared
    match entry.body:
        case Opened():
            opened = entry.body
            if state.opened is not None and state.opened.timeline != opened.timeline:
                moved = "the server is on another timeline than when the first chunk was read"
                tables = {table_id: broken(table, moved) for table_id, table in tables.items()}
            if opened.origin != "any":
                tables = {table_id: broken(table, LEAVES_OUT) for table_id, table in tables.items()}
            if state.opened is not None and (state.opened.origin, opened.origin) == ("none", "any"):
                tables = {table_id: lacking_origins(table, entry.through_lsn) for table_id, table in tables.items()}
            tables = since_the_fork(tables, state.opened, opened)
            tables = on_its_server(tables, state.opened, opened)
            if opened.lost is not None:
                tables = {table_id: with_gap(table, entry, opened.lost) for table_id, table in tables.items()}
                prepared = {}
            tables = {
                key: table
                if table.state == state.tables[key].state
                else replace(
                    table, since=entry.written_at, stated_seq=entry.seq, held_lsn=held_lsn(state, state.tables[key])
                )
                for key, table in tables.items()
            }
        case Changes():
            tables = _with_tables(state, entry)
            _check_changes(state, entry, entry.body, tables)
            tables = _waiting(tables, entry.body.segments)
            prepared = _prepared(state, entry, entry.body)
            tables = _with_unsent(tables, entry.body)
        case Table():
            tables = _with_tables(state, entry)
        case Snapshot():
            tables = {**tables, entry.body.table_id: _with_snapshot(state, entry, entry.body)}
            tables = _waiting(tables, entry.body.segments)
        case Repair():
            tables = {**tables, entry.body.table_id: _repaired(entry, tables.get(entry.body.table_id), entry.body)}
            tables = _waiting(tables, entry.body.segments)
    return PipelineState(
        seq=entry.seq,
        epoch=entry.epoch,
        previous_sha256=entry_sha256,
        through_lsn=entry.through_lsn,
        opened=opened,
        tables=tables,
        prepared=prepared,
        opened_seq=entry.seq if isinstance(entry.body, Opened) else state.opened_seq,
        examined_lsn=entry.examined_lsn,
        unexamined_since=unexamined_since(state, entry),
    )


def decided(state: PipelineState, body: Table | Snapshot | Progress, *, written_at: str) -> PipelineState:
    """The state after `body`, which is decided and not stored: numbers and times are provisional, also of a manifest
    that nobody has opened. Raises ManifestCorrupt if it may not follow.
    """
    entry = Entry(
        seq=state.seq + 1,
        epoch=state.epoch,
        previous_sha256=state.previous_sha256,
        from_lsn=state.through_lsn,
        through_lsn=state.through_lsn,
        written_at=written_at,
        body=body,
        examined_lsn=state.examined_lsn,
    )
    return _reduced(state, entry, state.previous_sha256)


def _check_link(state: PipelineState, entry: Entry) -> None:
    if entry.seq != state.seq + 1:
        raise ManifestCorrupt(f"manifest entry {state.seq + 1} calls itself {entry.seq}")
    if entry.previous_sha256 != state.previous_sha256:
        raise corrupt(entry.seq, f"does not continue entry {state.seq}: one of the two was replaced or damaged")
    if isinstance(entry.body, Opened):
        if entry.epoch != state.epoch + 1:
            raise corrupt(entry.seq, f"opens epoch {entry.epoch} after epoch {state.epoch}")
    elif entry.epoch != state.epoch or state.opened is None:
        raise corrupt(entry.seq, f"was written in epoch {entry.epoch}, in force is epoch {state.epoch}")
    check_positions(entry, after=state.through_lsn)
    if not state.examined_lsn <= entry.examined_lsn <= entry.through_lsn:
        raise corrupt(entry.seq, "was examined out of order")
    may_move = isinstance(entry.body, MOVING) or (isinstance(entry.body, Opened) and entry.body.lost is not None)
    if entry.through_lsn != entry.from_lsn and not (may_move or state.opened is None):
        kinds = " and ".join(kind.kind for kind in MOVING)
        raise corrupt(
            entry.seq, f"of kind {entry.body.kind} moves the position, which only entries of kind {kinds} may"
        )


def check_positions(entry: Entry, *, after: int) -> None:
    """Raises ManifestCorrupt unless `entry` continues at `after`, where the entry before it ended,
    and does not go back.
    """
    if entry.from_lsn != after:
        raise corrupt(
            entry.seq,
            f"continues from {show(entry.from_lsn)}, but what came before it ends at {show(after)}: the changes in "
            "between are in no entry",
        )
    if entry.through_lsn < entry.from_lsn:
        raise corrupt(entry.seq, f"goes back to an earlier position than {show(after)}")


def _with_tables(state: PipelineState, entry: Entry) -> dict[str, TableState]:
    tables = state.tables
    for table in entry.tables:
        new = stated(state, entry, table, old=tables.get(table.table_id))
        tables = {**tables, table.table_id: new}
    return tables


def _check_changes(state: PipelineState, entry: Entry, changes: Changes, tables: dict[str, TableState]) -> None:
    """Each transaction is stored once: it ended after what the manifest had, and no later than what
    this entry declares.
    """
    own_range = f"({show(state.through_lsn)}, {show(entry.through_lsn)}]"
    for segment in changes.segments:
        _check_segment(entry.seq, tables.get(segment.table_id), segment)
        if not state.through_lsn < segment.first_lsn <= segment.last_lsn <= entry.through_lsn:
            raise corrupt(entry.seq, f"holds changes of table {segment.table_id} outside its own range {own_range}")
    ends = changes.commits.end_lsn
    if len(ends) and not (state.through_lsn < ends[0] and ends[-1] <= entry.through_lsn):
        raise corrupt(entry.seq, f"holds transactions outside its own range {own_range}")
    if not all(before < after for before, after in pairwise(ends)):
        raise corrupt(entry.seq, "holds transactions out of commit order")


def _repaired(entry: Entry, table: TableState | None, repair: Repair) -> TableState:
    """It stands where its rows are known to be unchanged, and in a table that has initial rows from
    before them; or it closes the table's gap.
    """
    if (
        table is None
        or table.generation != repair.generation
        or not (table.state == State.GAP if repair.gap_seq else table.state.has_initial_rows)
        or table.snapshot is None
        or repair.schema_version != table.schema_version
        or not table.snapshot.snapshot_lsn < repair.as_of_lsn <= repair.unchanged_through_lsn
    ):
        raise corrupt(entry.seq, f"repairs table {repair.table_id}, which is not live in that generation and shape")
    if repair.unchanged_through_lsn != entry.through_lsn:
        raise corrupt(
            entry.seq,
            f"holds rows that were unchanged through {show(repair.unchanged_through_lsn)}, and stands at "
            f"{show(entry.through_lsn)}",
        )
    for segment in repair.segments:
        _check_segment(entry.seq, table, segment)
        if (segment.table_id, segment.first_lsn, segment.last_lsn) != (
            repair.table_id,
            repair.as_of_lsn,
            repair.as_of_lsn,
        ):
            raise corrupt(entry.seq, f"repairs table {repair.table_id} with rows of another table or position")
    if not repair.gap_seq:
        return table
    try:
        gaps = with_last_closed(table.gaps, repair)
    except ValueError as error:
        raise corrupt(entry.seq, f"is a wrong repair of table {repair.table_id}: {error}") from None
    return replace(table, state=State.LIVE, why=None, lsn=repair.as_of_lsn, since=entry.written_at, gaps=gaps)


def _prepared(state: PipelineState, entry: Entry, changes: Changes) -> dict[tuple[str, int], Prepared]:
    """The open prepared transactions after `changes`. One may be older than the entry's own range:
    a slot that began to decode at PREPARE sends it late.
    """
    if not changes.prepared and not changes.ended:
        return state.prepared
    still_open = dict(state.prepared)
    for end in changes.ended:
        if end.fate not in FATES or still_open.pop((end.gid, end.end_lsn), None) is None:
            raise corrupt(entry.seq, f"ends a prepared transaction that is not open, prepared at {show(end.end_lsn)}")
    for transaction in changes.prepared:
        if transaction.end_lsn > entry.through_lsn or any(gid == transaction.gid for gid, _ in still_open):
            raise corrupt(
                entry.seq,
                "holds a prepared transaction beyond its range, or one whose gid is in use, prepared "
                f"at {show(transaction.end_lsn)}",
            )
        still_open[transaction.gid, transaction.end_lsn] = transaction
    return still_open


def _check_segment(seq: int, table: TableState | None, segment: Segment) -> None:
    if table is None:
        raise corrupt(seq, f"refers to the unknown table {segment.table_id}")
    if segment.schema_version not in table.schemas:
        raise corrupt(seq, f"refers to the unknown schema version {segment.schema_version} of table {segment.table_id}")


def _waiting(tables: dict[str, TableState], segments: Iterable[Segment]) -> dict[str, TableState]:
    """`tables` with what `segments` add to those that are paused."""
    counted = tables
    for segment in segments:
        table = counted[segment.table_id]
        if table.paused is not None:
            pause = Pause(table.paused.since, table.paused.rows + segment.rows, table.paused.bytes + segment.bytes)
            counted = {**counted, segment.table_id: replace(table, paused=pause)}
    return counted


def _with_unsent(tables: dict[str, TableState], changes: Changes) -> dict[str, TableState]:
    """Notes changes without all their values of tables whose snapshot is under way."""
    for segment in changes.segments:
        table = tables[segment.table_id]
        if table.state != State.SNAPSHOT or not sum(segment.unchanged.values()):
            continue
        if table.snapshot is None:
            # The first chunk may be of an earlier moment and come later.
            table = replace(table, unsent_lsn=segment.last_lsn)
        else:
            table = replace(table, snapshot=table.snapshot.with_unsent(segment))
        tables = {**tables, segment.table_id: table}
    return tables


def _with_snapshot(state: PipelineState, entry: Entry, chunk: Snapshot) -> TableState:
    seq, table = entry.seq, state.tables.get(chunk.table_id)
    if table is None or chunk.generation != table.generation or chunk.schema_version not in table.schemas:
        raise corrupt(
            seq,
            f"is a snapshot of an unknown table, generation or schema version: table {chunk.table_id}, "
            f"generation {chunk.generation}",
        )
    for segment in chunk.segments:
        _check_segment(seq, table, segment)
        if segment.table_id != chunk.table_id:
            raise corrupt(seq, f"mixes rows of table {segment.table_id} into the snapshot of table {chunk.table_id}")
    origin = state.opened.origin if state.opened is not None else ""
    schema = table.schemas[chunk.schema_version]
    try:
        before = table.snapshot or begun(chunk, schema=schema, origin=origin, unsent_lsn=table.unsent_lsn)
        known = before.plus(chunk, through_lsn=state.through_lsn)
    except ValueError as error:
        raise corrupt(seq, f"is a wrong snapshot of table {chunk.table_id}: {error}") from None
    if table.state != State.SNAPSHOT:
        raise corrupt(seq, f"is a snapshot of table {chunk.table_id}, which is {table.state}")
    # A chunk shows that what kept the table from being read is over.
    after = replace(table, snapshot=known, why=None)
    if not chunk.final:
        return after
    return replace(
        after,
        state=State.PENDING if chunk.awaits_shape else State.LIVE,
        why=Reason(ReasonCode.SHAPE_AWAITED) if chunk.awaits_shape else None,
        lsn=known.snapshot_lsn,
        relfilenode=chunk.relfilenode,
        fingerprint=chunk.fingerprint,
        cause="",
        resyncs=after.resyncs.read(entry.written_at),
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
