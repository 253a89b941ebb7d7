"""The shape of a table whose history is a story, and what its lake table must hold."""

import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from tests.spark.canonical import Row, Rows, canonical, canonical_row, marked, marks, typed
from tests.spark.changes import Change
from tests.spark.pools import Kind, Marked, Value

FIRST_LSN = 100
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Added:
    """A column that comes later. `missing` is its default as the catalog has it, `value` what older rows get by it."""

    name: str
    kind: Kind
    missing: str | None = None
    value: Value = None


@dataclass(frozen=True)
class Shape:
    """A kind of table, and a kind of history. `columns` are kinds by name, `key` names those of the key, in any place.

    `mode` is a kind, or `soft` for a mirror that keeps deleted rows; `track` are the columns that a history tracks.

    `then` is what others do between one phase and the next, in turn; `steps` is the number of entries of a phase.
    `only_sql` says that the direct way refuses to merge into such a table.
    """

    name: str
    columns: Mapping[str, Kind]
    key: tuple[str, ...] = ()
    identity: str = "d"
    mode: str = "mirror"
    publishes: str = "iudt"
    metadata: bool = True
    initial: int = 12
    keys: int = 40
    steps: int = 5
    changes: int = 8
    then: tuple[str, ...] = ("", "optimize", "")
    added: tuple[Added, ...] = ()
    truncates: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    only_sql: bool = False
    track: tuple[str, ...] = ()

    @property
    def targets(self) -> list[dict[str, Any]]:
        """For the options of the applier."""
        kind, deletes = ("mirror", "soft") if self.mode == "soft" else (self.mode, "hard")
        return [{"kind": kind, "deletes": deletes, "track": self.track}]

    @property
    def keeps_rows(self) -> bool:
        """Whether the lake table has rows that the source no longer has."""
        return self.mode in ("soft", "history")

    @property
    def by_key(self) -> bool:
        return bool(self.key)


class Lake:
    """What the lake table of a shape must hold: rows by key, rows by number, every change, every row that there was,
    or every version.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._rows: dict[Any, Row] = {}
        self._copies = itertools.count()
        self._log: list[Row] = []
        self._lsn = FIRST_LSN
        self._before: dict[Any, Row] = {}
        self._dead: dict[Any, Row] = {}
        self._versions: list[Row] = []
        self._current: dict[Any, Row] = {}
        self.forgotten: list[Key] = []

    def snapshot(self, rows: list[Row], schema: TableSchema) -> None:
        for ordinal, row in enumerate(rows):
            self.take(Change("i", typed(row), special=marks(row)), schema, lsn=FIRST_LSN, ordinal=ordinal)

    def source(self) -> list[Row]:
        """The rows without metadata."""
        return [_plain(row) for row in self._rows.values()]

    def sample(self, choice: random.Random, count: int) -> list[Row]:
        """Up to `count` rows of the table as it is, without metadata."""
        places = choice.sample(list(self._rows), min(count, len(self._rows)))
        return [_plain(self._rows[place]) for place in places]

    def take(self, change: Change, schema: TableSchema, *, lsn: int, ordinal: int) -> None:
        self._lsn = lsn
        if self.shape.mode == "changelog":
            self._log.append(_logged(change, schema, lsn=lsn, ordinal=ordinal))
        names = [item.name for item in schema.columns]
        if change.op == "t":
            self.forgotten = [tuple(row[name] for name in self.shape.key) for row in self._rows.values()]
            self._rows.clear()
            return
        now = {name: change.values.get(name) for name in names} | marked(change.special)
        old = None if change.old is None else dict(change.old) | marked(change.old_special)
        base: Row = {}
        if change.op != "i":
            base = self._rows.pop(self._place(old or now), {})
        if change.op != "d":
            row = {name: base[name] if name in change.unchanged else now[name] for name in names}
            place = self._place(row) if self.shape.by_key else next(self._copies)
            assert change.op == "i" or not self.shape.by_key or place not in self._rows, (
                "a story of two rows with one key"
            )
            self._rows[place] = {**row, envelope.LSN: lsn}

    def widen(self, added: Added) -> None:
        for row in self._rows.values():
            row[added.name] = added.value
        for row in self._log:
            row[added.name] = None
        for row in (*self._before.values(), *self._dead.values(), *self._versions, *self._current.values()):
            row[added.name] = added.value

    def commit(self) -> None:
        """The transaction ends. What the rows of before it become follows from the rows alone."""
        now = {place: _plain(row) for place, row in self._rows.items()}
        for place in self._before.keys() - now.keys():
            at = {envelope.LSN: self._lsn, envelope.TS: _at(self._lsn), envelope.DELETED_AT: _at(self._lsn)}
            self._dead[place] = self._before[place] | at
        for place in now:
            self._dead.pop(place, None)
        for place in self._current.keys() | now.keys():
            self._next_version(place, now.get(place))
        self._before = now

    def _next_version(self, place: Any, row: Row | None) -> None:
        current = self._current.get(place)
        tracked = self.shape.track or tuple(row or ())
        if (
            current is not None
            and row is not None
            and all(canonical(current[name]) == canonical(row[name]) for name in tracked)
        ):
            self._current[place] = current | row
            return
        at = self._lsn, _at(self._lsn)
        if current is not None:
            ended = {envelope.TO_LSN: at[0], envelope.VALID_TO: at[1], envelope.IS_CURRENT: False}
            self._versions.append(self._current.pop(place) | ended)
        if row is not None:
            begun = {envelope.FROM_LSN: at[0], envelope.VALID_FROM: at[1]}
            open_ = {envelope.TO_LSN: None, envelope.VALID_TO: None, envelope.IS_CURRENT: True}
            self._current[place] = row | begun | open_

    def _place(self, row: Row) -> Any:
        if self.shape.by_key:
            return tuple(canonical(row[name], key=True) for name in self.shape.key)
        wanted = _spelled(row)
        return next(place for place, found in self._rows.items() if _spelled(found) == wanted)

    def canonical(self) -> Rows:
        """The rows with their metadata, as far as it is defined, in the form of `canonical_row`."""
        self.commit()
        if self.shape.mode == "history":
            return Counter(canonical_row(row) for row in (*self._versions, *self._current.values()))
        if self.shape.mode == "soft":
            living = [
                row | {envelope.DELETED_AT: None, envelope.TS: _at(row[envelope.LSN])} for row in self._rows.values()
            ]
            return Counter(map(canonical_row, (*living, *self._dead.values())))
        if self._log:
            return Counter(canonical_row(row) for row in self._log)
        if not self.shape.by_key or not self.shape.metadata:
            return Counter(canonical_row(row) for row in self.source())
        return Counter(canonical_row({**row, envelope.TS: _at(row[envelope.LSN])}) for row in self._rows.values())


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != envelope.LSN}


def _spelled(row: Row) -> tuple[Any, ...]:
    return canonical_row(_plain(row))


def _at(lsn: int) -> dt.datetime:
    """Changes of tests have their LSN for a time."""
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=lsn)


def _logged(change: Change, schema: TableSchema, *, lsn: int, ordinal: int) -> Row:
    attnums = {item.name: item.attnum for item in schema.columns}
    row: Row = {item.name: change.values.get(item.name) for item in schema.columns} | marked(change.special)
    row |= {
        envelope.OP: change.op,
        envelope.LSN: lsn,
        envelope.TS: _at(lsn),
        envelope.ORDINAL: ordinal,
        envelope.XID: None if lsn == FIRST_LSN else change.xid,
        envelope.SNAPSHOT: lsn == FIRST_LSN,
        envelope.ORIGIN: None,
        envelope.ORIGIN_LSN: None,
    }
    if schema.identity_columns:
        old = None if change.old is None else {item.name: change.old.get(item.name) for item in schema.identity_columns}
        row |= {
            envelope.UNCHANGED: [attnums[name] for name in change.unchanged] or None,
            envelope.OLD: old,
            envelope.OLD_SPECIAL: change.old_special,
        }
    return row


def lake_rows(rows: Iterable[dict[str, Any]], shape: Shape) -> Rows:
    """Rows that a reader found, to be compared with `Lake.canonical`."""
    defined = shape.metadata and (shape.by_key or shape.mode == "changelog")
    found: Rows = Counter()
    for row in rows:
        row = dict(row)
        special = row.pop(envelope.SPECIAL, None)
        assert special is None or len(special), "an empty map of marked values"
        for name, text in dict(special or {}).items():
            assert row[name] is None, f"{name} has a value and a marked value"
            row[name] = Marked(text)
        if not defined:
            row.pop(envelope.LSN, None)
            row.pop(envelope.TS, None)
        found[canonical_row(row)] += 1
    return found
