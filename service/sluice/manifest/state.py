"""What the manifest says, reduced entry by entry. Pure.

Invariant: `reduce` accepts only an entry that may follow: dense number, the chain's hash, the epoch
in force (or `opened` with the next one), the position that the entry before ended at and none
before it, transactions that are neither in the manifest already nor beyond what the entry declares,
tables and schema versions that exist. Anything else is ManifestCorrupt with the number of the
entry, before it is stored when we write and before it is used when we read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from sluice.contract import codec, keys
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
from sluice.contract.reasons import Reason, sentence
from sluice.contract.resyncs import Resyncs
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.lsn import show
from sluice.manifest.examined import held_lsn, unexamined_since
from sluice.manifest.forgotten import forgotten
from sluice.manifest.gaps import Gap, Gaps, after_lsn, closed
from sluice.manifest.lost_changes import broken, lacking_origins, on_its_server, since_the_fork, with_gap
from sluice.manifest.snapshot_state import SnapshotState, begun, published_kinds

MOVING = (Changes, Progress)
"""Entries that move the position. Of the others only the first `opened` does: the log begins there."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that is in force since `since` (ISO 8601 UTC), and what was spooled for the table in
    its generation from then on: none of it is in the lake.
    """

    since: str
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as of the last entry. `generation_seq` is the number of the Table entry that began
    the generation, `lsn` and `why` belong to `state`.

    A change of shape leaves `lsn` alone: what committed at or before it is in the snapshot.
    `schema_lsns` has by version where each shape of this generation came into force, 0 for the one
    that it began in. `schemas` holds every version ever introduced. `relfilenode` and `fingerprint` are
    the last known ones. `since` is when `state` began, as the entry says that put the table into it
    (ISO 8601 UTC). `stated_seq` is the number of the newest
    Table entry, or of the `opened` that put the table into its state. `paused` is beside the state:
    a pause outlasts changes of shape, a stale table and its resync, and ends when it is resumed or
    the table leaves. `cause` and `resync_at` are
    those of the newest Table entry, `resyncs` counts the generations after the first. `path` is
    where the lake table of this generation stands, below the lake. `first_name` is (schema, name)
    by which the table joined. All `schemas` have its present name. `unsent_lsn` is the newest position of a
    change of this generation that came without all its values before the first chunk of its snapshot did.
    `gaps` are those of this generation. `schema_seq` is the entry that introduced the newest shape, `held_lsn`
    through where the catalog had been examined when the table ceased to be live.

    Of a forgotten table only what tells it from every other is left, and in `schema_lsns` the newest
    version it had: should its id come back, it goes on with the next generation and version.
    """

    table_id: str
    schema_name: str
    table_name: str
    state: State
    why: Reason | None
    lsn: int
    generation: int
    generation_seq: int
    schemas: dict[int, TableSchema]
    schema_lsns: dict[int, int] = field(default_factory=dict)
    relfilenode: int = 0
    fingerprint: str = ""
    snapshot: SnapshotState | None = None
    unsent_lsn: int = 0
    since: str = ""
    cause: str = ""
    resync_at: str = ""
    resyncs: Resyncs = field(default_factory=Resyncs)
    path: str = ""
    first_name: tuple[str, str] = ("", "")
    paused: Pause | None = None
    gaps: Gaps = ()
    stated_seq: int = 0
    schema_seq: int = 0
    held_lsn: int = 0

    @property
    def reason(self) -> str:
        """Why it is in `state`, as a sentence."""
        return sentence(self.why, self.state, f"{self.schema_name}.{self.table_name}", resync_at=self.resync_at)

    @property
    def is_applied(self) -> bool:
        """What is spooled of the table is committed to the lake."""
        return self.state.is_applied and self.paused is None

    @property
    def is_forgotten(self) -> bool:
        """The table is gone, and no entry refers to it any more."""
        return self.state == State.DETACHED and self.why is None and not self.schemas

    @property
    def schema_version(self) -> int:
        """The newest schema version, 0 before the first."""
        return max(self.schemas, default=0)

    @property
    def next_version(self) -> int:
        """That of the next shape: no version is used twice."""
        return max((*self.schemas, *self.schema_lsns), default=0) + 1

    @property
    def schema_lsn(self) -> int:
        """Where the newest shape came into force, 0 while there was no other in this generation."""
        return self.schema_lsns.get(self.schema_version, 0)

    @property
    def gap(self) -> Gap | None:
        """The one that is open."""
        return self.gaps[-1] if self.gaps and not self.gaps[-1].closed else None

    def after_lsn(self, seq: int) -> int:
        """Changes in entry `seq` that ended at or before this position are in the rows that were read: those
        of the snapshot, or those that closed a gap.
        """
        return max(self.snapshot.snapshot_lsn if self.snapshot else 0, after_lsn(self.gaps, seq=seq))

    @property
    def publishes(self) -> str:
        """What the publication sends, by `published_kinds`, as the catalog was last looked at."""
        return published_kinds(self.fingerprint)


@dataclass(frozen=True, slots=True)
class PipelineState:
    """Everything that must survive, as of entry `seq` (0: no manifest yet). `opened` is the newest,
    of entry `opened_seq`. Never changed in place.

    `prepared` are the transactions that were prepared and have not ended, by (gid, end LSN of the
    PREPARE). Since `unexamined_since` (ISO 8601 UTC) the newest `examined_lsn` is behind and has not moved.
    """

    seq: int = 0
    epoch: int = 0
    previous_sha256: str = ""
    through_lsn: int = 0
    opened: Opened | None = None
    tables: dict[str, TableState] = field(default_factory=dict)
    prepared: dict[tuple[str, int], Prepared] = field(default_factory=dict)
    opened_seq: int = 0
    examined_lsn: int = 0
    unexamined_since: str = ""


def reduce(state: PipelineState, entry: Entry, entry_sha256: str) -> PipelineState:
    """The state after `entry`, whose stored bytes have the digest `entry_sha256`. Raises
    ManifestCorrupt; `state` stays as it is.
    """
    _check_link(state, entry)
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
                else replace(table, stated_seq=entry.seq, held_lsn=held_lsn(state, state.tables[key]))
                for key, table in tables.items()
            }
        case Changes():
            _check_changes(state, entry, entry.body)
            tables = _waiting(tables, entry.body.segments)
            prepared = _prepared(state, entry, entry.body)
            tables = _with_unsent(tables, entry.body)
        case Table():
            tables = {**tables, entry.body.table_id: _table(state, entry, entry.body)}
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
    if not state.examined_lsn <= entry.examined_lsn <= entry.through_lsn:
        raise _corrupt(entry.seq, "was examined out of order")
    may_move = isinstance(entry.body, MOVING) or (isinstance(entry.body, Opened) and entry.body.lost is not None)
    if entry.through_lsn != entry.from_lsn and not (may_move or state.opened is None):
        kinds = " and ".join(kind.kind for kind in MOVING)
        raise _corrupt(entry.seq, f"of kind {entry.body.kind} moves the position, which only {kinds} entries may")


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
        raise _corrupt(entry.seq, f"repairs table {repair.table_id}, which is not live in that generation and shape")
    if repair.unchanged_through_lsn != entry.through_lsn:
        raise _corrupt(
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
            raise _corrupt(entry.seq, f"repairs table {repair.table_id} with rows of another table or position")
    if not repair.gap_seq:
        return table
    try:
        gaps = closed(table.gaps, repair)
    except ValueError as error:
        raise _corrupt(entry.seq, f"is a wrong repair of table {repair.table_id}: {error}") from None
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


def _table(state: PipelineState, entry: Entry, new: Table) -> TableState:
    seq, old = entry.seq, state.tables.get(new.table_id)
    if new.state == State.PAUSED:
        raise _corrupt(seq, f"gives table {new.table_id} the state paused, which is none of its own")
    if old is not None and new.generation < old.generation:
        raise _corrupt(seq, f"takes table {new.table_id} back from generation {old.generation} to {new.generation}")
    begins = old is None or new.generation > old.generation
    known = None if begins else old
    if known is not None and known.gap is not None and new.state.has_initial_rows:
        raise _corrupt(seq, f"calls table {new.table_id} {new.state}, whose gap is open")
    if known is not None and known.state == State.DETACHED == new.state and new.why is None and new.schema is None:
        return forgotten(known, new, seq=seq)
    reshaped = known is not None and new.schema is not None and new.state == known.state
    schemas = _schemas(seq, old, new)
    return TableState(
        table_id=new.table_id,
        schema_name=new.schema_name,
        table_name=new.table_name,
        state=new.state,
        why=new.why,
        lsn=known.lsn if known and reshaped else new.lsn,
        generation=new.generation,
        generation_seq=known.generation_seq if known else seq,
        schemas=schemas,
        schema_lsns=_schema_lsns(known, new, newest=max(schemas, default=0), reshaped=reshaped),
        relfilenode=new.relfilenode or (old.relfilenode if old else 0),
        fingerprint=new.fingerprint or (old.fingerprint if old else ""),
        snapshot=known.snapshot if known else None,
        unsent_lsn=known.unsent_lsn if known else 0,
        since=known.since if known is not None and known.state == new.state else entry.written_at,
        cause=new.cause,
        resync_at=new.resync_at,
        resyncs=(old.resyncs.begun(new.cause, entry.written_at) if begins else old.resyncs) if old else Resyncs(),
        path=known.path if known else new.path or keys.lake_path(new.schema_name, new.table_name),
        first_name=old.first_name if old and old.state != State.DETACHED else (new.schema_name, new.table_name),
        paused=_paused(entry, old, new),
        gaps=known.gaps if known else (),
        stated_seq=seq,
        schema_seq=known.schema_seq if known and new.schema is None else seq,
        held_lsn=held_lsn(state, old),
    )


def _paused(entry: Entry, old: TableState | None, new: Table) -> Pause | None:
    """A generation that begins while the table is paused waits from its first row on."""
    before = old.paused if old is not None else None
    if new.paused is False or new.state == State.DETACHED or (before is None and not new.paused):
        return None
    if before is None:
        return Pause(entry.written_at)
    return before if old is not None and new.generation == old.generation else Pause(before.since)


def _waiting(tables: dict[str, TableState], segments: Iterable[Segment]) -> dict[str, TableState]:
    """`tables` with what `segments` add to those that are paused."""
    counted = tables
    for segment in segments:
        table = counted[segment.table_id]
        if table.paused is not None:
            pause = Pause(table.paused.since, table.paused.rows + segment.rows, table.paused.bytes + segment.bytes)
            counted = {**counted, segment.table_id: replace(table, paused=pause)}
    return counted


def _schema_lsns(known: TableState | None, new: Table, *, newest: int, reshaped: bool) -> dict[int, int]:
    if known is None:
        return {newest: 0}
    return {**known.schema_lsns, newest: new.lsn} if reshaped else known.schema_lsns


def _schemas(seq: int, old: TableState | None, new: Table) -> dict[int, TableSchema]:
    known = old.schemas if old else {}
    if old and (old.schema_name, old.table_name) != (new.schema_name, new.table_name):
        known = {version: schema.named(new.schema_name, new.table_name) for version, schema in known.items()}
    if new.schema is None or known.get(new.schema.version) == new.schema:
        return known
    expected = old.next_version if old else 1
    if new.schema.table_id != new.table_id or new.schema.version != expected:
        raise _corrupt(
            seq, f"introduces schema version {new.schema.version} of table {new.table_id} after {expected - 1}"
        )
    return {**known, new.schema.version: new.schema}


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
        raise _corrupt(
            seq,
            f"is a snapshot of an unknown table, generation or schema version: table {chunk.table_id}, "
            f"generation {chunk.generation}",
        )
    for segment in chunk.segments:
        _check_segment(seq, table, segment)
        if segment.table_id != chunk.table_id:
            raise _corrupt(seq, f"mixes rows of table {segment.table_id} into the snapshot of table {chunk.table_id}")
    origin = state.opened.origin if state.opened is not None else ""
    schema = table.schemas[chunk.schema_version]
    try:
        before = table.snapshot or begun(chunk, schema=schema, origin=origin, unsent_lsn=table.unsent_lsn)
        known = before.plus(chunk, through_lsn=state.through_lsn)
    except ValueError as error:
        raise _corrupt(seq, f"is a wrong snapshot of table {chunk.table_id}: {error}") from None
    if table.state != State.SNAPSHOT:
        raise _corrupt(seq, f"is a snapshot of table {chunk.table_id}, which is {table.state}")
    # A chunk shows that what kept the table from being read is over.
    after = replace(table, snapshot=known, why=None)
    if not chunk.final:
        return after
    return replace(
        after,
        state=State.LIVE,
        lsn=known.snapshot_lsn,
        relfilenode=chunk.relfilenode,
        fingerprint=chunk.fingerprint,
        cause="",
        resyncs=after.resyncs.read(entry.written_at),
    )


def _corrupt(seq: int, what: str) -> ManifestCorrupt:
    return ManifestCorrupt(
        f"manifest entry {seq} {what}",
        hint="nothing was acknowledged on its account; restore the manifest, or resync the tables",
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
