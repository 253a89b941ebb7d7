"""Garbage collection: which objects of the spool nothing will ever need again, and their deletion.

Invariant: an object goes only if every statement about it agrees. It is named by entries through
the horizon and by none after it; no transaction that holds it is still prepared; the entry that
named it last is older than asked; and every table has said, in the applier's own record, that it
needs nothing from there on back. A table that is behind, being snapshotted, unknown to the applier, or
without a record keeps everything. The horizon is durable before the first deletion, so that `spool
verify` never takes a deleted object for a lost one, nor a lost one for a deleted one. Entries are
never deleted: the chain stays provable from its first link. Runs beside ingest and applier, which
need nothing of what goes: ingest reads no data, the applier reads entries after the ones it
reported (never fewer in a later report of the same generation). It must not write below `manifest/`
or `apply/`, and must not be run by the writer (which needs no right to delete).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.entries import Changes, Entry, Opened, Prepared, Table, digest
from sluice.contract.horizon import Horizon
from sluice.errors import ManifestCorrupt, StoreRefused
from sluice.manifest import horizon
from sluice.manifest.leftovers import referenced, unnamed
from sluice.manifest.reader import read_entries
from sluice.manifest.state import PipelineState, TableState, reduce
from sluice.store.base import ObjectStore

CHECKPOINTS_KEPT = 10
THREADS = 8
"""In every other state the applier takes nothing of a table before a new generation begins."""
_FOR_EVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Hold:
    """`what` needs everything after entry `seq`; `why` in a few words."""

    seq: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} {self.why}" + (
            f": everything after entry {self.seq} stays" if self.seq else ": everything stays"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What may go now. `through_seq` is the last entry whose objects are given up (0: none),
    `through_lsn` its position; `holds` say what keeps the rest, the one that keeps most first.
    `objects` are segments and bodies with their sizes, `leftovers` are files of dead writers
    that no entry ever named.
    """

    entries: int
    through_seq: int
    through_lsn: int
    objects: dict[str, int]
    leftovers: tuple[str, ...]
    checkpoints: tuple[str, ...]
    holds: tuple[Hold, ...]
    horizon: Horizon | None

    @property
    def bytes(self) -> int:
        return sum(self.objects.values())


@dataclass(slots=True)
class _Walk:
    """What one look along the whole chain found. `last_use` has, for each object that exists, the
    entry from which on the chain no longer needs it.
    """

    existing: set[str]
    cutoff: datetime
    state: PipelineState = field(default_factory=PipelineState)
    last_use: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    stated: dict[str, int] = field(default_factory=dict)
    opened_seq: int = 0
    young_seq: int = _FOR_EVER

    def take(self, entry: Entry, sha256: str) -> None:
        before = self.state
        self.state = reduce(before, entry, sha256)
        if self.young_seq == _FOR_EVER and not _written_before(entry, self.cutoff):
            self.young_seq = entry.seq
        if isinstance(entry.body, Opened):
            self.opened_seq = entry.seq
        if isinstance(entry.body, Table):
            self.stated[entry.body.table_id] = entry.seq
        if isinstance(entry.body, Changes):
            for end in entry.body.ended:
                self._use(before.prepared[end.gid, end.end_lsn], entry.seq)
        for segment in referenced(entry.body):
            self._mark(segment.key, segment.bytes, entry.seq)
        if isinstance(entry.body, Changes):
            for transaction in entry.body.prepared:
                self._use(transaction, _FOR_EVER)

    def _use(self, transaction: Prepared, seq: int) -> None:
        for part in transaction.parts:
            self._mark(part.segment.key, part.segment.bytes, seq)

    def _mark(self, key: str, size: int, seq: int) -> None:
        if key in self.existing:
            self.last_use[key], self.sizes[key] = seq, size


def plan(store: ObjectStore, *, keep: timedelta, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Plan:
    """Looks at everything and changes nothing. Raises ManifestCorrupt and FormatTooNew when
    something is doubtful, StoreError.
    """
    # In this order: the record of the applier is never ahead of the manifest that is read after it,
    # and no entry names an object listed before it too late.
    log, complete = _newest_log(store), _newest_complete(store)
    walk = _Walk(set(_placed(store)), now() - keep)
    for entry, sha256 in read_entries(store, after_seq=0):
        walk.take(entry, sha256)
    state = walk.state
    _check_record(state, log, complete)
    holds = sorted(
        _holds(walk, log, complete_seq=complete.seq if complete else 0), key=lambda hold: (hold.seq, hold.what)
    )
    through_seq = min((hold.seq for hold in holds), default=state.seq)
    former = horizon.newest(store)
    found = _entry(store, through_seq) if through_seq else None
    further = found is not None and through_seq > former.through_seq
    return Plan(
        entries=state.seq,
        through_seq=through_seq,
        through_lsn=found[0].through_lsn if found else 0,
        objects={key: walk.sizes[key] for key, seq in sorted(walk.last_use.items()) if seq <= through_seq},
        leftovers=_leftovers(store, walk),
        checkpoints=tuple(sorted(store.list(keys.CHECKPOINTS))[:-CHECKPOINTS_KEPT]),
        holds=tuple(hold for hold in holds if hold.seq < state.seq),
        horizon=Horizon(through_seq, found[1], now().isoformat(timespec="seconds")) if found and further else None,
    )


def carry_out(store: ObjectStore, plan: Plan) -> None:
    """Deletes what `plan` says; what a crash leaves is in the next plan. Raises ManifestCorrupt,
    StoreError.

    Checkpoints stay where nobody may delete below `manifest/`: they are few, and not worth an
    error.
    """
    if plan.horizon is not None:
        faults.point("gc.horizon.before")
        horizon.state(store, plan.horizon)
        faults.point("gc.horizon.after")
    with ThreadPoolExecutor(THREADS, thread_name_prefix="gc") as pool:
        for _ in pool.map(lambda key: _delete(store, key), (*plan.objects, *plan.leftovers)):
            pass
    with contextlib.suppress(StoreRefused):
        for key in plan.checkpoints:
            _delete(store, key)


def _delete(store: ObjectStore, key: str) -> None:
    faults.point("gc.delete.before")
    store.delete(key)


def _holds(walk: _Walk, log: AppliedLog | None, *, complete_seq: int) -> Iterator[Hold]:
    if log is None:
        yield Hold(0, "the applier", "has not reported yet")
        return
    if walk.young_seq != _FOR_EVER:
        yield Hold(walk.young_seq - 1, "retention", f"entry {walk.young_seq} is younger than asked")
    for table_id, table in walk.state.tables.items():
        hold = _table_hold(table, log.tables.get(table_id), stated_seq=walk.stated[table_id], complete_seq=complete_seq)
        if hold is not None:
            yield hold


def _table_hold(table: TableState, row: AppliedTable | None, *, stated_seq: int, complete_seq: int) -> Hold | None:
    """What `table` keeps, None for nothing.

    `complete_seq` is an entry which the applier had read when no window was under way that the
    manifest had called off until then.
    """
    name = f"{table.schema_name}.{table.table_name}"
    if not table.schemas or (not table.state.is_followed and complete_seq >= stated_seq):
        return None
    if row is not None and row.generation == table.generation and row.through_seq:
        return Hold(
            row.through_seq,
            name,
            f"is applied through entry {row.through_seq}" if row.state == "live" else f"is {row.state}",
        )
    begins_here = table.generation == 1 or (
        row is not None and row.generation == table.generation and complete_seq >= table.generation_seq
    )
    before = (
        table.generation_seq - 1
        if begins_here
        else row.through_seq
        if row is not None and row.generation < table.generation
        else 0
    )
    return Hold(
        before,
        name,
        "its snapshot is being taken"
        if table.state.is_followed
        else f"is {table.state}, and the applier may not know it yet",
    )


def _check_record(state: PipelineState, log: AppliedLog | None, complete: Complete | None) -> None:
    """The applier speaks of this manifest, and of nothing that the manifest does not hold."""
    hint = "nothing was deleted; was the manifest or apply/ restored from a backup? `sluice spool verify` looks"
    if complete is not None and complete.seq > state.seq:
        raise ManifestCorrupt(
            f"the applier has applied through entry {complete.seq}, the manifest ends with {state.seq}", hint=hint
        )
    for table_id, row in log.tables.items() if log else ():
        table = state.tables.get(table_id)
        if table is None or row.generation > table.generation or row.through_seq > state.seq:
            raise ManifestCorrupt(
                f"the applier's record of {row.schema_name}.{row.table_name} is not one of this manifest", hint=hint
            )


def _leftovers(store: ObjectStore, walk: _Walk) -> tuple[str, ...]:
    if not walk.opened_seq:
        return ()
    return tuple(
        unnamed(
            store,
            opened_seq=walk.opened_seq,
            epoch=walk.state.epoch,
            table_ids=walk.state.tables,
            stop=threading.Event(),
        )
    )


def _placed(store: ObjectStore) -> Iterator[str]:
    for folder in (keys.DATA, keys.STAGE):
        yield from (key for key in store.list(folder) if keys.placed(key) is not None)


def _entry(store: ObjectStore, seq: int) -> tuple[Entry, str]:
    stored = store.get(keys.manifest_entry(seq))
    return Entry.decode(stored), digest(stored)


def _written_before(entry: Entry, cutoff: datetime) -> bool:
    """An entry whose time cannot be read counts as young."""
    try:
        return datetime.fromisoformat(entry.written_at) <= cutoff
    except (ValueError, TypeError):
        return False


def _newest_log(store: ObjectStore) -> AppliedLog | None:
    key = _last(store.list(keys.APPLY_LOG))
    return AppliedLog.decode(store.get(key)) if key else None


def _newest_complete(store: ObjectStore) -> Complete | None:
    key = _last(store.list(keys.APPLY_COMPLETE))
    return Complete.decode(store.get(key)) if key else None


def _last(found: Iterable[str]) -> str | None:
    return max(found, default=None)
