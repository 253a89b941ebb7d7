"""How each key of a table stands at the end of each transaction of a window that touches it.

Owns that what a transaction did and undid leaves no state, and that a state knows where each of its values
is: in which change, or, where none of the window sent it, in which row of the lake. A TRUNCATE ends the rows of
all keys, of those that the window names as of all others. Must not touch Spark, storage or the clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import Keys, in_order, operations, row_numbers, unchanged_flags
from sluice_spark.fold.row_identity import OLD_WHOLE, Claims, Numbers, whole

NOWHERE = -1
_AS_BEFORE = -2


@dataclass(frozen=True, slots=True)
class States:
    """Parallel arrays, by key and then in order. `key` numbers keys, `place` is the position in the window of what
    made the state. A key that is `alive` has the row that change number `row` sent; `sources` has, by attnum, the
    change that sent the value (NOWHERE: it is in the lake's row of the key `origin`).
    """

    key: Numbers
    place: Numbers
    alive: Claims
    row: Numbers
    origin: Numbers
    sources: dict[int, Numbers]

    def of(self, chosen: Numbers | Claims) -> "States":
        """Those that are `chosen`, in that order."""
        return States(
            self.key[chosen],
            self.place[chosen],
            self.alive[chosen],
            self.row[chosen],
            self.origin[chosen],
            {attnum: source[chosen] for attnum, source in self.sources.items()},
        )

    @property
    def first(self) -> Claims:
        """Which state is the first one of its key."""
        first = np.ones(len(self.key), dtype=bool)
        first[1:] = self.key[1:] != self.key[:-1]
        return first

    @property
    def last(self) -> Claims:
        """Which state is the last one of its key."""
        last = np.ones(len(self.key), dtype=bool)
        last[:-1] = self.key[1:] != self.key[:-1]
        return last


@dataclass(frozen=True, slots=True)
class Timeline:
    """`states` of the `keys` that `changes` touch. `begun` has, by key number, whether a state may follow a row
    that the lake has; otherwise a TRUNCATE came first. `lsn` and `ts` are those of the window by place,
    `truncated` the place of its first TRUNCATE (NOWHERE: none).
    """

    changes: pa.Table
    keys: Keys
    states: States
    begun: Claims
    lsn: pa.Array
    ts: pa.Array
    truncated: int


def timeline(rows: pa.Table, schema: TableSchema, *, removals_sent: bool) -> Timeline:
    """That of united changes to a table with a key. Raises UnsupportedChange for an impossible history."""
    rows = in_order(rows)
    truncates = pc.equal(rows[envelope.OP], envelope.OP_TRUNCATE).to_numpy()
    places = np.flatnonzero(~truncates)
    changes = rows.take(pa.array(places)) if bool(truncates.any()) else rows
    epoch = np.cumsum(truncates)[places]
    flags = unchanged_flags(changes, schema)
    keys = Keys(changes, schema, operations(changes))
    whole_rows = schema.replica_identity == "f"
    coupled = keys.coupled(whole_rows=whole_rows)
    found = _Events(list(flags))
    _simple(found, np.flatnonzero(~coupled), keys, epoch, flags, schema)
    walk = np.flatnonzero(coupled)
    if len(walk):
        lsns = changes[envelope.LSN].to_numpy()
        walker = _Walk(walk, keys, epoch, lsns, flags, schema, removals_sent)
        followed = walker.by_row(*_contents(changes, schema, walk)) if whole_rows else walker.by_key()
        for event in followed:
            found.add(*event)
    events = found.states()
    begun = np.zeros(keys.count, dtype=bool)
    begun[events.key[epoch[events.place] == 0]] = True
    states = _at_ends(events, places, epoch, np.flatnonzero(truncates), rows[envelope.LSN].to_numpy(), begun)
    return Timeline(
        changes,
        keys,
        states,
        begun,
        whole(rows[envelope.LSN]),
        whole(rows[envelope.TS]),
        int(np.argmax(truncates)) if bool(truncates.any()) else NOWHERE,
    )


@dataclass(slots=True)
class _Events:
    """States after single changes; `place` is the number of the change."""

    attnums: list[int]
    parts: list[States] = field(default_factory=list)
    _rows: list[tuple[int, int, bool, int, int]] = field(default_factory=list)
    _sources: list[list[int]] = field(default_factory=list)

    def add(self, key: int, place: int, row: int, origin: int, sources: list[int]) -> None:
        self._rows.append((key, place, row >= 0, row, origin))
        self._sources.append(sources or [NOWHERE] * len(self.attnums))

    def states(self) -> States:
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, 5)
        sources = np.array(self._sources, dtype=np.int64).reshape(len(self._rows), len(self.attnums))
        parts = [
            *self.parts,
            States(
                columns[:, 0],
                columns[:, 1],
                columns[:, 2].astype(bool),
                columns[:, 3],
                columns[:, 4],
                {attnum: sources[:, place] for place, attnum in enumerate(self.attnums)},
            ),
        ]
        return _together(parts)


def _together(parts: list[States]) -> States:
    return States(
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.alive for part in parts]),
        np.concatenate([part.row for part in parts]),
        np.concatenate([part.origin for part in parts]),
        {attnum: np.concatenate([part.sources[attnum] for part in parts]) for attnum in parts[0].sources},
    )


def _simple(
    found: _Events, positions: Numbers, keys: Keys, epoch: Numbers, flags: dict[int, Claims], schema: TableSchema
) -> None:
    """Of keys that no row moves between: each change says what becomes of its key."""
    order = positions[np.lexsort((positions, keys.acts_on[positions]))]
    key, operation = keys.acts_on[order], keys.operation[order]
    alive = operation != ord("d")
    count = np.arange(len(order))
    cuts = np.ones(len(order), dtype=bool)
    cuts[1:] = (key[1:] != key[:-1]) | (epoch[order][1:] != epoch[order][:-1])
    start = np.maximum.accumulate(np.where(cuts, count, 0)) if len(order) else count
    begins = _latest(operation != ord("u"), start)
    sources: dict[int, Numbers] = {}
    for attnum, flag in flags.items():
        sent = _latest(~flag[order] & alive, start)
        lost = alive & ((sent < begins) | ((sent < 0) & (epoch[order] > 0)))
        if bool(lost.any()):
            raise _unsent(attnum, schema)
        sources[attnum] = np.where(sent >= 0, order[np.maximum(sent, 0)], NOWHERE) if len(order) else order
    origin = np.where((begins < 0) & (epoch[order] == 0), key, NOWHERE)
    found.parts.append(States(key, order, alive, np.where(alive, order, NOWHERE), origin, sources))


def _latest(claims: Claims, start: Numbers) -> Numbers:
    """For each place the last one up to it that is claimed, not before `start`; NOWHERE without one."""
    if not len(claims):
        return start
    latest = np.maximum.accumulate(np.where(claims, np.arange(len(claims)), NOWHERE))
    return np.where(latest >= start, latest, NOWHERE)


def _unsent(attnum: int, schema: TableSchema) -> UnsupportedChange:
    return UnsupportedChange(
        f"{schema.qualified_name}: attribute {attnum} of an inserted row was not sent and has no earlier row"
    )


def _contents(changes: pa.Table, schema: TableSchema, positions: Numbers) -> tuple[Numbers, Numbers, Claims]:
    chosen = changes.take(pa.array(positions))
    after, before = row_numbers(chosen, schema)
    if OLD_WHOLE in chosen.column_names:
        return after, before, whole(chosen[OLD_WHOLE]).to_numpy(zero_copy_only=False)
    return after, before, np.ones(len(positions), dtype=bool)


@dataclass(slots=True)
class _Row:
    """`sent` has, by attnum, the last change that sent the value."""

    origin: int
    sent: dict[int, int] = field(default_factory=dict)


_Event = tuple[int, int, int, int, list[int]]
"""Key, change, the change that sent the key's row (NOWHERE: it is gone, _AS_BEFORE: it is the one from before the
window), origin, sources.
"""


@dataclass(slots=True)
class _Walk:
    """Follows the few rows that moved, in Python. `positions` ascend."""

    positions: Numbers
    keys: Keys
    epoch: Numbers
    lsns: Numbers
    flags: dict[int, Claims]
    schema: TableSchema
    removals_sent: bool

    def _changes(self) -> Iterator[tuple[int, int, int, int, int]]:
        for position in self.positions.tolist():
            yield (
                position,
                int(self.epoch[position]),
                int(self.keys.operation[position]),
                int(self.keys.acts_on[position]),
                int(self.keys.now[position]),
            )

    def by_key(self) -> Iterator[_Event]:
        """Where a key names one row at any time."""
        at: dict[int, _Row | None] = {}
        epoch = 0
        for position, now_epoch, operation, acts_on, now in self._changes():
            if now_epoch != epoch:
                at, epoch = {}, now_epoch
            if operation == ord("i"):
                row = _Row(NOWHERE)
            else:
                row = self._taken(at, acts_on, epoch)
                at[acts_on] = None
            if operation == ord("d"):
                yield acts_on, position, NOWHERE, NOWHERE, []
                continue
            if operation == ord("u") and now != acts_on:
                yield acts_on, position, NOWHERE, NOWHERE, []
            if self.removals_sent and at.get(now) is not None:
                how = "was inserted with" if operation == ord("i") else "moved to"
                raise UnsupportedChange(f"{self.schema.qualified_name}: a row {how} the key of a row that exists")
            at[now] = row
            yield now, position, position, row.origin, self._sources(row, position)

    def _taken(self, at: dict[int, _Row | None], key: int, epoch: int) -> _Row:
        row = at[key] if key in at else None if epoch else _Row(key)
        if row is None:
            if self.removals_sent:
                raise UnsupportedChange(f"{self.schema.qualified_name}: a change names a key that no row has")
            # It took the place of a row that must be gone; the change that removed it was not sent.
            row = _Row(NOWHERE)
        return row

    def _sources(self, row: _Row, position: int) -> list[int]:
        """Where the values of `row` are behind its change at `position`. No change is looked at twice: a row may have
        any number of them.
        """
        for attnum, flag in self.flags.items():
            if not flag[position]:
                row.sent[attnum] = position
            elif attnum not in row.sent and row.origin == NOWHERE:
                raise _unsent(attnum, self.schema)
        return [row.sent.get(attnum, NOWHERE) for attnum in self.flags]

    def by_row(self, after: Numbers, before: Numbers, is_whole: Claims) -> Iterator[_Event]:
        """Where old rows are sent whole, and two rows may share a key until their transaction ends."""
        added: dict[int, list[tuple[int, int]]] = {}
        original_gone: set[int] = set()
        replaced: set[int] = set()
        epoch, lsn = 0, 0
        touched: set[int] = set()
        for place, (position, now_epoch, operation, acts_on, now) in enumerate(self._changes()):
            if self.lsns[position] != lsn:
                self._require_single(added, touched)
                # Whatever row of the lake had such a key is gone: one row has it when a transaction ends.
                replaced |= {key for key in touched if added.get(key)}
                touched, lsn = set(), int(self.lsns[position])
            if now_epoch != epoch:
                added, original_gone, epoch = {}, set(), now_epoch
            if operation != ord("i"):
                here = added.setdefault(acts_on, [])
                same = next(
                    (
                        index
                        for index in reversed(range(len(here)))
                        if not is_whole[place] or here[index][1] == before[place]
                    ),
                    None,
                )
                if same is not None:
                    del here[same]
                elif self.removals_sent and (epoch or acts_on in original_gone):
                    raise UnsupportedChange(f"{self.schema.qualified_name}: a change names a row that does not exist")
                else:
                    original_gone.add(acts_on)
            if operation != ord("d"):
                added.setdefault(now, []).append((position, int(after[place])))
                if any(bool(flag[position]) for flag in self.flags.values()):
                    raise UnsupportedChange(
                        f"{self.schema.qualified_name}: a value was not sent although the identity is full"
                    )
            for key in dict.fromkeys((acts_on, now) if operation != ord("d") else (acts_on,)):
                touched.add(key)
                rows = added.get(key)
                is_gone = epoch > 0 or key in original_gone or key in replaced
                left = NOWHERE if is_gone else _AS_BEFORE
                row = rows[-1][0] if rows else left
                yield key, position, row, NOWHERE, [row] * len(self.flags)
        self._require_single(added, touched)

    def _require_single(self, added: dict[int, list[tuple[int, int]]], touched: set[int]) -> None:
        if self.removals_sent and any(len(added.get(key, ())) > 1 for key in touched):
            raise UnsupportedChange(f"{self.schema.qualified_name}: two rows have one key at the end of a transaction")


def _at_ends(
    events: States, places: Numbers, epoch: Numbers, truncates: Numbers, lsn: Numbers, begun: Claims
) -> States:
    """The last event of each key in each transaction, without those that change nothing."""
    epochs = epoch[events.place]
    parts = [States(events.key, places[events.place], events.alive, events.row, events.origin, events.sources)]
    ended = epochs < len(truncates)
    if bool(ended.any()):
        pairs = np.unique(np.stack([events.key[ended], epochs[ended]], axis=1), axis=0)
        nothing = np.full(len(pairs), NOWHERE, dtype=np.int64)
        sources = dict.fromkeys(events.sources, nothing)
        gone = np.zeros(len(pairs), dtype=bool)
        parts.append(States(pairs[:, 0], truncates[pairs[:, 1]], gone, nothing, nothing, sources))
    every = _together(parts)
    every = every.of(np.lexsort((every.place, every.key)))
    ends = np.ones(len(every.key), dtype=bool)
    ends[:-1] = (every.key[1:] != every.key[:-1]) | (lsn[every.place][1:] != lsn[every.place][:-1])
    states = every.of(ends)
    states = states.of(states.row != _AS_BEFORE)
    nothing_new = ~states.alive
    nothing_new[1:] &= (states.key[1:] == states.key[:-1]) & ~states.alive[:-1]
    first = states.first
    nothing_new[first] = ~states.alive[first] & ~begun[states.key[first]]
    return states.of(~nothing_new)
