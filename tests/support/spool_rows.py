"""The rows that the files of one table in the spool make, replayed in memory. See `tests.support.oracle`."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tools.local.rendering import float_text, postgres_texts

Place = int | str
"""A column: its attnum, or its name where the catalog no longer knew one."""
Row = dict[Place, str | None]


class TornRows(AssertionError):
    """Rows that cannot follow what came before: a change of a row that is not there, a row that is there twice."""


@dataclass(frozen=True)
class Part:
    """A file of one table. `body` is what the entry says of rows that were written before their transaction ended."""

    path: Path
    version: int
    body: dict[str, Any] | None
    gone: frozenset[int]


@dataclass
class Table:
    """One table as the manifest has it. `snapshots` and `finals` are by generation."""

    table_id: str
    schema: str
    name: str
    state: str = ""
    reason: str = ""
    generation: int = 0
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    snapshots: dict[int, list[tuple[int, Part]]] = field(default_factory=dict)
    """Each file with the position of the snapshot that it was read from."""
    snapshot_lsns: dict[int, int] = field(default_factory=dict)
    """Of the newest of them; `first_lsns` of the oldest."""
    first_lsns: dict[int, int] = field(default_factory=dict)
    finals: set[int] = field(default_factory=set)
    ranges: dict[int, dict[str, list[tuple[int, int]]]] = field(default_factory=dict)
    """By generation and relation, the blocks that were read."""
    changes: list[Part] = field(default_factory=list)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


def replay(table: Table) -> list[Row]:
    """The table's rows after its newest snapshot and every change behind that. Raises TornRows."""
    if table.generation not in table.finals:
        raise TornRows("the table is live without a snapshot")
    parts = table.snapshots[table.generation]
    first, last = table.first_lsns[table.generation], table.snapshot_lsns[table.generation]
    # The rows of a snapshot stand behind every commit that they have.
    events: list[tuple[tuple[int, int, int, int], _Change, int]] = []
    for number, (lsn, part) in enumerate(parts):
        events += [((lsn, 1, number, place), change, part.version) for (_, place), change in _read(part, table)]
    for part in table.changes:
        for (lsn, place), change in _read(part, table):
            if lsn > first:
                events.append(((lsn, 0, place, 0), change, part.version))
    rows = _Rows(table)
    for (lsn, *_), change, version in sorted(events, key=lambda one: one[0]):
        rows.take(change, version, joins=first < lsn <= last)
    rows.shape(max(table.schemas))
    return list(rows)


@dataclass
class _Change:
    op: str
    new: Row
    old: Row
    unchanged: frozenset[int]


class _Rows:
    """Rows in memory: by key where the table has one, else as a bag of equal rows."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._by_key: dict[tuple[str | None, ...], Row] = {}
        self._bag: list[Row] = []
        self._version = 0

    def __iter__(self) -> Iterator[Row]:
        yield from self._by_key.values()
        yield from self._bag

    def shape(self, version: int) -> None:
        """Brings the rows into a newer shape: a column that was added has its constant default in
        older rows, and other columns may be the key.
        """
        if version <= self._version:
            return
        before = self._table.schemas.get(self._version)
        known = {place_of(column): column for column in before["columns"]} if before else None
        for column in self._table.schemas[version]["columns"]:
            place = place_of(column)
            if known is not None and place not in known:
                for row in self:
                    row[place] = column["missing"]
            elif known is not None and known[place]["lake"] != column["lake"]:
                for row in self:
                    row[place] = cast_text(row.get(place), known[place]["lake"]["sql"], column["lake"]["sql"])
        keys = [place_of(column) for column in self._table.schemas[version]["columns"] if column["key"]]
        rows = list(self)
        self._by_key = {tuple(row.get(place) for place in keys): row for row in rows} if keys else {}
        self._bag = [] if keys else rows
        if keys and (len(self._by_key) < len(rows) or any(None in key for key in self._by_key)):
            raise TornRows("rows share a value of the key that they have from here on")
        self._version = version

    def take(self, change: _Change, version: int, *, joins: bool = False) -> None:
        """Between snapshots of several parts (`joins`) rows may be missing, and a part brings rows that are there."""
        self.shape(version)
        key = [place_of(column) for column in self._table.schemas[version]["columns"] if column["key"]]
        if change.op == "t":
            self._by_key.clear()
            self._bag.clear()
        elif key:
            self._take_keyed(change, key, joins=joins)
        else:
            self._take_unkeyed(change)

    def _take_keyed(self, change: _Change, key: list[Place], *, joins: bool) -> None:
        before = change.old or change.new
        old_key = tuple(before.get(place) for place in key)
        if change.op == "i":
            if not joins and tuple(change.new.get(place) for place in key) in self._by_key:
                raise TornRows("a row is inserted whose key is there already")
            old: Row = {}
        else:
            if not joins and old_key not in self._by_key:
                raise TornRows(f"an {'update' if change.op == 'u' else 'delete'} finds no row of its key")
            old = self._by_key.pop(old_key, {})
        if change.op != "d":
            new = _filled(change, old)
            self._by_key[tuple(new.get(place) for place in key)] = new

    def _take_unkeyed(self, change: _Change) -> None:
        old: Row = {}
        if change.op != "i":
            at = next(
                (
                    at
                    for at, row in enumerate(self._bag)
                    if all(row.get(place) == value for place, value in change.old.items())
                ),
                None,
            )
            if at is None:
                raise TornRows("an update or delete finds no row that equals its old one")
            old = self._bag.pop(at)
        if change.op != "d":
            self._bag.append(_filled(change, old))


def cast_text(text: str | None, before: str, after: str) -> str | None:
    """A value's text after PostgreSQL's own cast to a wider type."""
    if text is None or text in ("NaN", "infinity", "-infinity"):
        return text
    if (before, after) == ("float", "double"):
        return float_text(struct.unpack("f", struct.pack("f", float(text)))[0], bits=64)
    if (before, after) == ("date", "timestamp_ntz"):
        return f"{text[:-3]} 00:00:00 BC" if text.endswith(" BC") else f"{text} 00:00:00"
    if after.startswith("decimal"):
        return f"{Decimal(text):.{after[:-1].split(',')[1]}f}"
    return text


def _filled(change: _Change, old: Row) -> Row:
    """The new row, with values that were not sent taken from the old one."""
    new = dict(change.new)
    for attnum in change.unchanged:
        if attnum not in old and attnum not in change.old:
            raise TornRows("a value was not sent and no earlier row has it")
        new[attnum] = old.get(attnum, change.old.get(attnum))
    return new


def _read(part: Part, table: Table) -> list[tuple[tuple[int, int], _Change]]:
    """The changes of one file with their place in commit order; those that were rolled back are left out."""
    file = pq.read_table(part.path)
    schema = table.schemas[part.version]
    new = _sides(file, file.schema, schema, file.column("_sluice_special"))
    old: list[Row] = [{}] * file.num_rows
    if "_sluice_old" in file.column_names:
        structs = file.column("_sluice_old").combine_chunks()
        fields = pa.table({item.name: structs.field(item.name) for item in structs.type}) if len(structs.type) else None
        if fields is not None:
            old = _sides(fields, fields.schema, schema, file.column("_sluice_old_special"))
            old = [row if there else {} for row, there in zip(old, structs.is_valid().to_pylist(), strict=True)]
    found = []
    envelope = (
        file.column(name).to_pylist()
        for name in ("_sluice_op", "_sluice_lsn", "_sluice_ordinal", "_sluice_xid", "_sluice_unchanged")
    )
    for at, (op, lsn, ordinal, xid, unchanged) in enumerate(zip(*envelope, strict=True)):
        if xid not in part.gone:
            end_lsn = part.body["end_lsn"] if part.body else lsn
            found.append(((end_lsn, ordinal), _Change(op, new[at], old[at], frozenset(unchanged or ()))))
    return found


def _sides(file: pa.Table, fields: pa.Schema, schema: dict[str, Any], special: pa.ChunkedArray) -> list[Row]:
    by_name = {column["name"]: column for column in schema["columns"]}
    columns: list[tuple[Place, str, list[str | None]]] = []
    for name in file.column_names:
        if name.startswith("_sluice"):
            continue
        number = int((fields.field(name).metadata or {}).get(b"PARQUET:field_id", b"0"))
        place: Place = number or (place_of(by_name[name]) if name in by_name else name)
        texts = [text for chunk in file.column(name).chunks for text in postgres_texts(chunk)]
        columns.append((place, name, texts))
    rows: list[Row] = [{place: texts[at] for place, _, texts in columns} for at in range(file.num_rows)]
    places = {name: place for place, name, _ in columns}
    for row, marks in zip(rows, special.to_pylist(), strict=True):
        for name, text in marks or ():
            if row[places[name]] is not None:
                raise TornRows("a value is both typed and marked")
            row[places[name]] = text
    return rows


def place_of(column: dict[str, Any]) -> Place:
    return int(column["attnum"]) or str(column["name"])
