"""Seeded histories of one table: what ingest would publish, what others do to the lake in between, and what the lake
must hold after each entry.

A story is the same for every way to commit: it depends on its shape and its seed alone.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.contract.schema import TableSchema
from tests.spark.canonical import Row, Rows, canonical, marks, typed
from tests.spark.changes import Change, table_schema
from tests.spark.pools import DOUBLE
from tests.spark.story_lake import FIRST_LSN, Key, Lake, Shape

STEP_LSN = 10
Ordinals = Iterator[int]


@dataclass
class Step:
    """One manifest entry, its changes by the schema version they belong to, and what the lake holds after it."""

    parts: list[tuple[list[Change], TableSchema]]
    after: Rows


@dataclass
class Phase:
    """Entries that are published together and applied in one run, in windows of one entry each or of many. `new` is
    the schema version that begins with them; `then` is what others do afterwards.
    """

    steps: list[Step]
    one_by_one: bool
    then: str
    new: TableSchema | None = None


class Story:
    """One history of one table."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.seed = seed
        self._choice = random.Random(f"{shape.name} {seed}")
        self._later = list(shape.added)
        self.kinds = dict(shape.columns)
        self.first = self.schema = self._version(1)
        self._lsn = FIRST_LSN
        self._free = self._keys()
        self._ghosts = [self._free.pop() for _ in range(6 if shape.by_key and len(self._free) > 20 else 0)]
        self.lake = Lake(shape)
        self.initial = [self._row(self._fresh_key()) for _ in range(min(shape.initial, len(self._free) // 2))]
        self.lake.snapshot(self.initial, self.schema)
        self.snapshot = self.lake.canonical()
        self.phases = [self._phase(number, then) for number, then in enumerate(shape.then)]

    def _version(self, number: int) -> TableSchema:
        columns = []
        added = {one.name: one for one in self.shape.added}
        for attnum, (name, kind) in enumerate(self.kinds.items(), start=1):
            missing = added[name].missing if name in added else None
            columns.append(kind.column(name, attnum, key=name in self.shape.key, missing=missing))
        return table_schema(*columns, identity=self.shape.identity, version=number)

    def _keys(self) -> list[Key]:
        """Free keys, shuffled. A table without a key has empty ones."""
        shape = self.shape
        if not shape.by_key:
            return [()] * 100_000
        pools = [self.kinds[name].distinct(shape.keys) for name in shape.key]
        if len(pools) == 1:
            keys = [(value,) for value in pools[0]]
        else:
            keys = list(itertools.islice(itertools.product(*pools), 50_000))
            self._choice.shuffle(keys)
            keys = keys[: shape.keys]
        self._choice.shuffle(keys)
        return keys

    def _phase(self, number: int, then: str) -> Phase:
        steps: list[Step] = []
        new = None
        old = self.schema
        if number and self._later:
            new = self._next_version()
        truncate_at = self._choice.randrange(self.shape.steps) if number == 1 and self.shape.truncates else -1
        for place in range(self.shape.steps):
            parts = []
            self._lsn += STEP_LSN
            ordinals = itertools.count()
            if new is not None and place == 0:
                parts.append((self._changes(old, ordinals), old))
                self._widen(new)
            changes = self._changes(self.schema, ordinals, truncate=place == truncate_at)
            if changes:
                parts.append((changes, self.schema))
            steps.append(Step(parts, self.lake.canonical()))
        return Phase(steps, one_by_one=self._choice.random() < 0.7, then=then, new=new)

    def _next_version(self) -> TableSchema:
        """With the next column, which `_widen` makes known to the model."""
        added = self._later.pop(0)
        self._coming = added
        kinds, self.kinds = self.kinds, {**self.kinds, added.name: added.kind}
        version = self._version(self.schema.version + 1)
        self.kinds = kinds
        return version

    def _widen(self, version: TableSchema) -> None:
        self.kinds[self._coming.name] = self._coming.kind
        self.schema = version
        self.lake.widen(self._coming)

    def _changes(self, schema: TableSchema, ordinals: Ordinals, *, truncate: bool = False) -> list[Change]:
        changes: list[Change] = []
        count = self._choice.randint(1, self.shape.changes)
        cut = self._choice.randint(0, count) if truncate else -1
        for place in range(count):
            if place == cut:
                changes += self._take([Change("t")], schema, ordinals)
                self._free += self.lake.forgotten
            changes += self._take(self._one(schema) or self._update(schema), schema, ordinals)
        if cut == count:
            changes += self._take([Change("t")], schema, ordinals)
            self._free += self.lake.forgotten
        return changes

    def _take(self, changes: list[Change], schema: TableSchema, ordinals: Ordinals) -> list[Change]:
        for change in changes:
            self.lake.take(change, schema, lsn=self._lsn, ordinal=next(ordinals))
        return changes

    def _one(self, schema: TableSchema) -> list[Change]:
        """The changes of one statement."""
        kinds = {"insert": 6, "update": 4, "same": 1, "delete": 2, "again": 1, "cancel": 1}
        if self.shape.by_key:
            kinds |= {"move": 2, "swap": 1, "chain": 1}
        if self.shape.by_key and self.shape.mode == "mirror":
            kinds |= {"ghost_delete": 1, "ghost_update": 1}
        if any(self.kinds[key] is DOUBLE for key in self.shape.key):
            kinds |= {"other_zero": 4}
        if self.shape.identity == "n" and not self.shape.key:
            kinds = {"insert": 1}
        elif self.shape.publishes == "iut":
            kinds = {name: kinds[name] for name in ("insert", "update", "same", "move", "swap", "chain")} | {
                "replace": 2
            }
        name = self._choice.choices(list(kinds), list(kinds.values()))[0]
        found: list[Change] = getattr(self, f"_{name}")(schema)
        return found

    # Each makes the changes of one statement; a row is a dict of every column.

    def _insert(self, schema: TableSchema) -> list[Change]:
        return [self._inserted(self._row(self._fresh_key()))] if self._free else self._update(schema)

    def _replace(self, schema: TableSchema) -> list[Change]:
        """A row that takes the key of one whose removal was not published."""
        row = self._some_row()
        return [self._inserted({**self._row(()), **self._part(row, self.shape.key)})] if row else self._insert(schema)

    def _update(self, schema: TableSchema) -> list[Change]:
        row = self._some_row()
        return [self._updated(row, self._changed(row), schema)] if row else self._insert(schema)

    def _same(self, schema: TableSchema) -> list[Change]:
        row = self._some_row()
        return [self._updated(row, row, schema)] if row else []

    def _delete(self, schema: TableSchema) -> list[Change]:
        row = self._some_row()
        if row is None:
            return []
        self._free.append(self._key(row))
        return [self._deleted(row, schema)]

    def _again(self, schema: TableSchema) -> list[Change]:
        """A key is freed and used again."""
        row = self._some_row()
        if row is None:
            return []
        return [self._deleted(row, schema), self._inserted({**self._row(()), **self._part(row, self.shape.key)})]

    def _cancel(self, schema: TableSchema) -> list[Change]:
        if not self._free:
            return []
        key = self._fresh_key()
        row = self._row(key)
        self._free.append(key)
        return [self._inserted(row), self._updated(row, now := self._changed(row), schema), self._deleted(now, schema)]

    def _move(self, schema: TableSchema) -> list[Change]:
        row = self._some_row()
        if row is None or not self._free:
            return []
        key = self._fresh_key()
        self._free.append(self._key(row))
        return [self._updated(row, {**self._changed(row), **self._keyed(key)}, schema)]

    def _swap(self, schema: TableSchema) -> list[Change]:
        rows = self._some_rows(2)
        if len(rows) < 2 or not self._free:
            return []
        one, two = rows
        aside = {**one, **self._keyed(self._free[0])}
        moved, back = {**self._changed(two), **self._part(one, self.shape.key)}, self._changed(aside)
        return [
            self._updated(one, aside, schema),
            self._updated(two, moved, schema),
            self._updated(aside, {**back, **self._part(two, self.shape.key)}, schema),
        ]

    def _chain(self, schema: TableSchema) -> list[Change]:
        """a -> free, b -> a, c -> b, and a new row with the key of c."""
        rows = self._some_rows(3)
        if len(rows) < 3 or not self._free:
            return []
        found, free = [], self._keyed(self._fresh_key())
        for row in rows:
            found.append(self._updated(row, {**self._changed(row), **free}, schema))
            free = self._part(row, self.shape.key)
        return [*found, self._inserted({**self._row(()), **free})]

    def _other_zero(self, schema: TableSchema) -> list[Change]:
        """From 0.0 to -0.0 or back in a key, which the source takes for the same key."""
        zeros = [row for row in self.lake.source() if any(row[name] == 0.0 for name in self.shape.key)]
        if not zeros:
            return []
        row = dict(zeros[0])
        return [
            self._updated(row, {**row, **{name: -row[name] for name in self.shape.key if row[name] == 0.0}}, schema)
        ]

    def _ghost_delete(self, schema: TableSchema) -> list[Change]:
        """Of a row that the lake does not have, by a key that nothing has named before."""
        return [self._deleted(self._row(self._ghosts.pop()), schema)] if self._ghosts else []

    def _ghost_update(self, schema: TableSchema) -> list[Change]:
        """Of a row that the lake does not have, with all of its values: the row is there from then on."""
        if not self._ghosts:
            return []
        row = self._row(self._ghosts.pop())
        return [self._change("u", row, old=row if self.shape.identity == "f" else None, schema=schema)]

    def _some_row(self) -> Row | None:
        return next(iter(self._some_rows(1)), None)

    def _some_rows(self, count: int) -> list[Row]:
        return self.lake.sample(self._choice, count)

    def _fresh_key(self) -> Key:
        return self._free.pop(self._choice.randrange(min(3, len(self._free)))) if self.shape.by_key else ()

    def _key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.shape.key)

    def _keyed(self, key: Key) -> Row:
        return dict(zip(self.shape.key, key, strict=True)) if key else {}

    def _part(self, row: Row, names: Iterable[str]) -> Row:
        return {name: row[name] for name in names}

    def _row(self, key: Key) -> Row:
        row = {name: kind.any(self._choice) for name, kind in self.kinds.items() if name not in self.shape.key}
        return {**row, **self._keyed(key)} if key else row

    def _changed(self, row: Row) -> Row:
        """With other values in some columns that are not of the key."""
        now = dict(row)
        for name, kind in self.kinds.items():
            if name not in self.shape.key and self._choice.random() < 0.4:
                now[name] = kind.any(self._choice)
        return now

    def _inserted(self, row: Row) -> Change:
        return self._change("i", row, schema=self.schema)

    def _updated(self, row: Row, now: Row, schema: TableSchema) -> Change:
        is_whole = self.shape.identity == "f"
        moved = any(canonical(row[name]) != canonical(now[name]) for name in self.shape.key)
        unsent = () if is_whole else tuple(
            name
            for name, kind in self.kinds.items()
            if kind.large and name not in self.shape.key and canonical(row[name]) == canonical(now[name])
            and self._choice.random() < 0.7
        )  # fmt: skip
        return self._change("u", now, old=row if moved or is_whole else None, unsent=unsent, schema=schema)

    def _deleted(self, row: Row, schema: TableSchema) -> Change:
        return self._change("d", {}, old=row, schema=schema)

    def _change(
        self, op: str, row: Row, *, schema: TableSchema, old: Row | None = None, unsent: tuple[str, ...] = ()
    ) -> Change:
        sent = {name: value for name, value in row.items() if name not in unsent}
        identity = {item.name for item in schema.identity_columns}
        before = None if old is None else {name: value for name, value in old.items() if name in identity}
        return Change(
            op,
            typed(sent),
            old=None if before is None else typed(before),
            unchanged=unsent,
            special=marks(sent),
            old_special=marks(before or {}),
        )
