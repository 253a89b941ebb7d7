"""Following rows through key changes, where the last change of a key does not determine the row's
state.

Owns the two ways to follow a row: by key, where the server guarantees that a key names one row at a
time (primary key or identity index), and by whole row, where the old row is sent in full and a
deferred constraint may let two rows share a key inside a transaction. Pure Python over the few
changes that touch a moved key.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sluice.errors import UnsupportedChange
from sluice_spark.fold.row_identity import Claims, Numbers


@dataclass(frozen=True, slots=True)
class Outcome:
    """Net changes as parallel arrays: the origin's key number, whether the row is gone, whether it
    may match a row of the lake, the position of its last change, and for each column with unsent
    values the position of the change that has it (-1: keep the lake's).
    """

    origin: Numbers
    deleted: Claims
    match: Claims
    last: Numbers
    sources: dict[int, Numbers]

    def plus(self, other: "Outcome") -> "Outcome":
        return Outcome(
            np.concatenate([self.origin, other.origin]),
            np.concatenate([self.deleted, other.deleted]),
            np.concatenate([self.match, other.match]),
            np.concatenate([self.last, other.last]),
            {attnum: np.concatenate([self.sources[attnum], other.sources[attnum]]) for attnum in self.sources},
        )

    def where(self, chosen: Claims) -> "Outcome":
        sources = {attnum: source[chosen] for attnum, source in self.sources.items()}
        return Outcome(self.origin[chosen], self.deleted[chosen], self.match[chosen], self.last[chosen], sources)


@dataclass(frozen=True, slots=True)
class Events:
    """Changes to follow: `positions` ascend and index the other arrays. Without `removals_sent` a
    row may have been removed without an event.
    """

    positions: Numbers
    operation: Numbers
    acts_on: Numbers
    now: Numbers
    flags: dict[int, Claims]
    table: str
    removals_sent: bool

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        chosen = self.positions
        return zip(
            chosen.tolist(),
            self.operation[chosen].tolist(),
            self.acts_on[chosen].tolist(),
            self.now[chosen].tolist(),
            strict=True,
        )


@dataclass(slots=True)
class _Row:
    origin: int | None
    """Key number at the start of the window; None for a row that was inserted in it."""
    key: int
    changes: list[int] = field(default_factory=list)
    deleted: bool = False


@dataclass(slots=True)
class _Keyed:
    """Rows by the key that they have now: None where the key is certainly free, no entry where it
    is as it was before the window.
    """

    table: str
    removals_sent: bool
    at: dict[int, _Row | None] = field(default_factory=dict)
    rows: list[_Row] = field(default_factory=list)

    def taken(self, key: int) -> _Row:
        """The row that has `key`, which is free from now on."""
        row = self.at.get(key) if key in self.at else self._added(_Row(key, key))
        if row is None:
            if self.removals_sent:
                raise UnsupportedChange(f"{self.table}: a change names a key that no row has")
            # It took the place of a row that must be gone; the change that removed it was not sent.
            row = self._added(_Row(None, key))
        self.at[key] = None
        return row

    def place(self, row: _Row, key: int, position: int, *, how: str) -> None:
        """`row` has `key` from now on."""
        if self.removals_sent:
            if self.at.get(key) is not None:
                raise UnsupportedChange(f"{self.table}: a row {how} the key of a row that exists")
        elif self.at.get(key) is not None or key not in self.at:
            gone = self.taken(key)
            gone.deleted = True
            gone.changes.append(position)
        row.key = key
        self.at[key] = row

    def inserted(self, key: int) -> _Row:
        return self._added(_Row(None, key))

    def _added(self, row: _Row) -> _Row:
        self.rows.append(row)
        return row


def follow_by_key(events: Events) -> Outcome:
    """One outcome per row, for tables whose key names one row at any time. Raises UnsupportedChange
    for a history that breaks this.
    """
    keyed = _Keyed(events.table, events.removals_sent)
    for position, operation, acts_on, now in events:
        row = keyed.inserted(acts_on) if operation == ord("i") else keyed.taken(acts_on)
        row.changes.append(position)
        if operation == ord("d"):
            row.deleted = True
        else:
            keyed.place(row, now, position, how="was inserted with" if operation == ord("i") else "moved to")
    # A row that was added and removed again has no outcome of its own. The origin at its first key,
    # if there is one, has its own outcome.
    return _as_outcome([row for row in keyed.rows if not (row.deleted and row.origin is None)], events)


def _as_outcome(rows: list[_Row], events: Events) -> Outcome:
    sources: dict[int, Numbers] = {}
    for attnum, flag in events.flags.items():
        found = [next((change for change in reversed(row.changes) if not flag[change]), -1) for row in rows]
        if any(place < 0 and row.origin is None for place, row in zip(found, rows, strict=True)):
            raise UnsupportedChange(
                f"{events.table}: attribute {attnum} of an inserted row was not sent and has no earlier row"
            )
        sources[attnum] = np.array(found, dtype=np.int64)
    return Outcome(
        np.array([row.key if row.origin is None else row.origin for row in rows], dtype=np.int64),
        np.array([row.deleted for row in rows], dtype=bool),
        np.array([row.origin is not None for row in rows], dtype=bool),
        np.array([row.changes[-1] for row in rows], dtype=np.int64),
        sources,
    )


def follow_by_row(events: Events, after: Numbers, before: Numbers, is_whole: Claims) -> Outcome:
    """One outcome per key, for tables whose old rows are sent whole: a removed row is recognised by
    its content, so two rows may share a key temporarily.

    `after` and `before` number the whole rows, in the order of `events.positions`. A change from
    before the identity was full is not `is_whole`: its key names the row, as at that time only one
    row could have it.
    """
    added: dict[int, list[tuple[int, int]]] = {}
    original_gone: dict[int, int] = {}
    for place, (position, operation, acts_on, now) in enumerate(events):
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
            elif acts_on in original_gone and events.removals_sent:
                raise UnsupportedChange(f"{events.table}: a change names a row that does not exist")
            else:
                original_gone[acts_on] = position
        if operation != ord("d"):
            added.setdefault(now, []).append((position, int(after[place])))
    if events.removals_sent and any(len(rows) > 1 for rows in added.values()):
        raise UnsupportedChange(f"{events.table}: two rows have one key at the end of a transaction")
    final = {key: rows[-1][0] for key, rows in added.items() if rows}
    gone = {key: position for key, position in original_gone.items() if key not in final}
    # A row that was added and removed again may be in the lake already. Removing a row that is not
    # there has no effect.
    keys = [*final, *gone]
    last = np.array([*final.values(), *gone.values()], dtype=np.int64)
    if any(bool(np.any(flag[last[: len(final)]])) for flag in events.flags.values()):
        raise UnsupportedChange(f"{events.table}: a value was not sent although the identity is full")
    return Outcome(
        np.array(keys, dtype=np.int64),
        np.arange(len(keys)) >= len(final),
        np.ones(len(keys), dtype=bool),
        last,
        dict.fromkeys(events.flags, last),
    )
