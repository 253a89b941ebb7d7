"""Pruning: which objects of the spool nothing will ever need again, and their deletion.

Invariant: an object goes only if every statement about it agrees. It is named by entries through
the horizon and by none after it; no transaction that holds it is still prepared; the entry that
named it is as old as asked; and every table has said, in the applier's own record, that it needs
nothing from there on back. Age only ever keeps: no clock and no setting lets go what is not
applied. A table that is behind, being snapshotted, unknown to the applier, or without a record keeps
everything.

The order: the horizon is durable before the first object is deleted, so that a deleted object is
never taken for a lost one; that these objects are gone is stated when the last one is; and only then
do archives of entries go that nobody can need any more. A kill anywhere leaves a spool that is
whole, and the next pruning ends the work. What holds once holds for ever, so that it does not
matter how long a process was paused before it deletes. Costs what is new since the last one. Runs
beside ingest and applier, which need nothing of what goes.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.entries import Changes, Entry, Opened, Prepared
from sluice.contract.horizon import Horizon
from sluice.contract.reasons import ReasonCode
from sluice.errors import ManifestCorrupt, StoreRefused
from sluice.manifest import consumers, entry_lookup, horizon
from sluice.manifest.compaction import new_floor
from sluice.manifest.entry_lookup import Link
from sluice.manifest.leftovers import referenced, unnamed
from sluice.manifest.newest_record import newest_complete, newest_log
from sluice.manifest.reader import load_state, read_links
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore
from sluice.store.calls import together

CHECKPOINTS_KEPT = 10
STATEMENTS_KEPT = 3
THREADS = 8
AHEAD = 5000
"""Entries of a time to come that are read to find out whether they are old all the same."""
DELETED_AT_ONCE = 50
"""Between two questions whether this process still may."""
_OVER = (ReasonCode.PRUNED, ReasonCode.PATH_TAKEN)
"""Why a lake table cannot go on from the spool whatever is in it."""
CONSUMER_SECONDS = 86400.0
"""For so long a consumer that says nothing more keeps what it has not read."""
FOR_EVER = math.inf
"""How many seconds an entry stays whose changes are in the lake."""


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
    """What may go now. `through_seq` is the last entry whose objects are pruned (0: none),
    `through_lsn` its position; `holds` say what keeps the rest, the one that keeps most first.
    `objects` are segments and bodies with their sizes that were not deleted before, `leftovers`
    files of dead writers that no entry ever named. `after` is the state after the last of them,
    from which a next plan goes on. `floor` is the first entry that stays once all this is done.
    """

    entries: int
    through_seq: int
    through_lsn: int
    objects: dict[str, int]
    leftovers: tuple[str, ...]
    checkpoints: tuple[str, ...]
    holds: tuple[Hold, ...]
    horizon: Horizon | None
    cleaned: Horizon | None
    after: PipelineState
    floor: Horizon | None

    @property
    def bytes(self) -> int:
        return sum(self.objects.values())


def plan(
    store: ObjectStore,
    *,
    keep_seconds: float,
    consumer_seconds: float = CONSUMER_SECONDS,
    state: Callable[[], PipelineState] | None = None,
    after: PipelineState | None = None,
    most_entries: int | None = None,
    leftovers: bool = True,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Plan:
    """Looks and changes nothing. `state` gives that of the manifest, or a little older; `after` is
    that of the last plan which was carried out; no more than `most_entries` are looked at behind it. A consumer keeps
    what it has not read for `consumer_seconds` after it last said how far it is.
    Raises ManifestCorrupt and FormatTooNew when something is doubtful, StoreError.
    """
    # In this order: the record of the applier is never ahead of the manifest that is read after it.
    log, complete = newest_log(store).read(), newest_complete(store).read()
    newest = load_state(store) if state is None else state()
    _check_record(store, newest, log, complete)
    former, cleaned = horizon.newest(store), horizon.cleaned(store)
    start = after if after is not None and after.seq >= cleaned.through_seq else _state_at(store, cleaned.through_seq)
    holds = list(_holds(newest, log, complete_seq=complete.seq if complete else 0))
    holds += [
        Hold(one.seq, f"the consumer {one.name}", f"has read through entry {one.seq}")
        for one in consumers.heard_of(store, since=now() - timedelta(seconds=consumer_seconds))
    ]
    last = min([hold.seq for hold in holds] + [newest.seq])
    walk = _Walk(start)
    walk.go(store, last=last, most=most_entries, keep_seconds=keep_seconds, now=now())
    holds += walk.young
    through = max(walk.state.seq, former.through_seq)
    statement = Horizon(walk.state.seq, walk.state.previous_sha256, now().isoformat(timespec="seconds"))
    return Plan(
        entries=newest.seq,
        through_seq=through,
        through_lsn=walk.state.through_lsn,
        objects=walk.objects(),
        leftovers=_leftovers(store, newest) if leftovers else (),
        checkpoints=tuple(sorted(store.list(keys.CHECKPOINTS))[:-CHECKPOINTS_KEPT]),
        holds=tuple(sorted((hold for hold in holds if hold.seq < newest.seq), key=lambda hold: (hold.seq, hold.what))),
        horizon=statement if walk.state.seq > former.through_seq else None,
        cleaned=statement if walk.state.seq > cleaned.through_seq else None,
        after=walk.state,
        floor=new_floor(store, walk.state.seq, newest_seq=newest.seq, now=now()),
    )


def carry_out(store: ObjectStore, plan: Plan, *, require_owner: Callable[[], None] = lambda: None) -> None:
    """Deletes what `plan` says; what a crash leaves is in the next plan. Raises ManifestCorrupt,
    StoreError, and what `require_owner` raises, which is asked before every step.

    Checkpoints stay where nobody may delete below `manifest/`: they are few, and not worth an
    error.
    """
    require_owner()
    if plan.horizon is not None:
        faults.point("gc.horizon.before")
        horizon.state(store, plan.horizon)
        faults.point("gc.horizon.after")
    _delete(store, [*plan.objects, *plan.leftovers], require_owner)
    if plan.cleaned is not None:
        require_owner()
        faults.point("gc.cleaned.before")
        horizon.state_cleaned(store, plan.cleaned)
        faults.point("gc.cleaned.after")
    if plan.floor is not None:
        require_owner()
        faults.point("gc.floor.before")
        horizon.state_floor(store, plan.floor)
        faults.point("gc.floor.after")
    _trim(store, require_owner)
    with contextlib.suppress(StoreRefused):
        _delete(store, plan.checkpoints, require_owner)


def _trim(store: ObjectStore, require_owner: Callable[[], None]) -> None:
    """Archives before the floor go, and older statements."""
    floor, gone = horizon.floor_seq(store), []
    for key in store.list(keys.ARCHIVES) if floor else ():
        if key > keys.archive(floor):
            break
        gone.append(key)
    _delete(store, gone, require_owner)
    for folder in (keys.HORIZONS, keys.CLEANED, keys.FLOORS):
        listed = [key for key in store.list(folder) if key.count("/") == folder.count("/")]
        _delete(store, sorted(listed)[:-STATEMENTS_KEPT], require_owner)


def _delete(store: ObjectStore, names: Iterable[str], require_owner: Callable[[], None]) -> None:
    def one(key: str) -> None:
        faults.point("gc.delete.before")
        store.delete(key)

    wanted = list(names)
    for start in range(0, len(wanted), DELETED_AT_ONCE):
        require_owner()
        for _ in together(one, wanted[start : start + DELETED_AT_ONCE], threads=THREADS):
            pass


def _state_at(store: ObjectStore, seq: int) -> PipelineState:
    """The state after entry `seq`, which is not before `horizon.base`."""
    state = horizon.base(store)
    for link in read_links(
        store, after_seq=state.seq, previous_sha256=state.previous_sha256 or None, limit=max(0, seq - state.seq)
    ):
        state = reduce(state, link.entry, link.sha256)
    return state


class _Walk:
    """One look along the chain, from where the last one ended. `named` has every object that the
    entries on the way name, or let go of.
    """

    def __init__(self, state: PipelineState) -> None:
        self.state = state
        self.named: dict[str, int] = {}
        self.young: list[Hold] = []

    def go(self, store: ObjectStore, *, last: int, most: int | None, keep_seconds: float, now: datetime) -> None:
        """Through entry `last`, or the last one that is old enough, and `most` entries. Entries of a time to come were
        dated by a clock that was ahead: they are older than those after them.
        """
        limit = last - self.state.seq
        if limit <= 0:
            return
        if keep_seconds == FOR_EVER:
            self.young.append(Hold(self.state.seq, "retention", "is for ever"))
            return
        begin, cutoff, old_seq = self.state.seq, now - timedelta(seconds=keep_seconds), 0
        for link in read_links(store, after_seq=begin, previous_sha256=self.state.previous_sha256 or None, limit=limit):
            seq = link.entry.seq
            if seq > old_seq and most is not None and seq - begin > most:
                return
            if seq > old_seq and not _written_before(link.entry, cutoff):
                old_seq = _old_behind(store, link, last=last, cutoff=cutoff, now=now)
                if not old_seq:
                    self.young.append(Hold(seq - 1, "retention", f"entry {seq} is younger than asked"))
                    return
            self._take(link.entry, link.sha256)

    def objects(self) -> dict[str, int]:
        """What nothing needs after the last entry, with sizes: a transaction that is still prepared
        then holds its own.
        """
        held = {part.segment.key for transaction in self.state.prepared.values() for part in transaction.parts}
        return {key: size for key, size in sorted(self.named.items()) if key not in held}

    def _take(self, entry: Entry, sha256: str) -> None:
        before = self.state
        self.state = reduce(before, entry, sha256)
        if isinstance(entry.body, Opened) and entry.body.lost is not None:
            for transaction in before.prepared.values():
                self._let_go(transaction)
        if isinstance(entry.body, Changes):
            for end in entry.body.ended:
                self._let_go(before.prepared[end.gid, end.end_lsn])
        for segment in referenced(entry.body):
            self.named[segment.key] = segment.bytes

    def _let_go(self, transaction: Prepared) -> None:
        for part in transaction.parts:
            self.named[part.segment.key] = part.segment.bytes


def _holds(state: PipelineState, log: AppliedLog | None, *, complete_seq: int) -> Iterator[Hold]:
    if log is None:
        yield Hold(0, "the applier", "has not reported yet")
        return
    rows: dict[str, list[AppliedTable]] = {}
    for row in log.tables.values():
        rows.setdefault(row.table_id, []).append(row)
    for table_id, table in state.tables.items():
        # The lake tables that a table feeds: the slowest says what stays.
        holds = [_table_hold(table, row, complete_seq=complete_seq) for row in rows.get(table_id, [None])]
        yield from (hold for hold in holds if hold is not None)


def _table_hold(table: TableState, row: AppliedTable | None, *, complete_seq: int) -> Hold | None:
    """What `table` keeps, None for nothing.

    `complete_seq` is an entry which the applier had read when no window was under way that the
    manifest had called off until then.
    """
    name = row.title if row is not None else table.title
    if not table.schemas or (not table.state.is_followed and complete_seq >= table.stated_seq):
        return None
    if row is not None and row.generation == table.generation and row.why is not None and row.why.code in _OVER:
        # Nothing in front of its next generation is of use to it.
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


def _check_record(store: ObjectStore, state: PipelineState, log: AppliedLog | None, complete: Complete | None) -> None:
    """The applier speaks of this manifest, and of nothing that the manifest does not hold."""
    hint = "nothing was deleted; was the manifest or apply/ restored from a backup? run `sluice spool verify`"
    if complete is not None and complete.seq > state.seq:
        raise ManifestCorrupt(
            f"the applier has applied through entry {complete.seq}, the manifest ends with {state.seq}", hint=hint
        )
    read = entry_lookup.find(store, log.seq) if log is not None and log.seq else None
    if log is not None and (log.seq > state.seq or (read is not None and read.sha256 != log.sha256)):
        raise ManifestCorrupt(
            f"the applier has read another manifest entry {log.seq} than the manifest has: the reports are newer than "
            "the entries",
            hint="nothing was deleted; start the applier, which reads each lake table and reports anew",
        )
    for row in log.tables.values() if log else ():
        table = state.tables.get(row.table_id)
        if table is None or row.generation > table.generation or row.through_seq > state.seq:
            raise ManifestCorrupt(
                f"the applier's record of {row.schema_name}.{row.table_name} is not one of this manifest", hint=hint
            )


def _leftovers(store: ObjectStore, state: PipelineState) -> tuple[str, ...]:
    if not state.opened_seq:
        return ()
    return tuple(
        unnamed(
            store,
            opened_seq=state.opened_seq,
            epoch=state.epoch,
            table_ids=state.tables,
            stop=threading.Event(),
        )
    )


def _written_before(entry: Entry, moment: datetime) -> bool:
    """An entry whose time cannot be read counts as young."""
    try:
        return datetime.fromisoformat(entry.written_at) <= moment
    except (ValueError, TypeError):
        return False


def _old_behind(store: ObjectStore, link: Link, *, last: int, cutoff: datetime, now: datetime) -> int:
    """An entry behind that of `link` from before `cutoff`, where all between them are of a time to come; 0 without."""
    seq = link.entry.seq
    if _written_before(link.entry, now):
        return 0
    for later in read_links(store, after_seq=seq, previous_sha256=link.sha256, limit=min(last - seq, AHEAD)):
        if _written_before(later.entry, now):
            return later.entry.seq if _written_before(later.entry, cutoff) else 0
    return 0
