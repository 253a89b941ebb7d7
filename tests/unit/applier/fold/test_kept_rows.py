"""Kinds whose rows outlive a change, against a model of rows and transactions: in any windows and portions."""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.contract import envelope
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import KEY, KEY_SPECIAL, MATCH, Folded
from sluice_spark.fold.partition import Cutter, Links, cutter_for
from sluice_spark.fold.row_identity import special_rows, special_texts
from sluice_spark.fold.spill import Versioned, portions
from sluice_spark.kinds.kind import Kind
from sluice_spark.kinds.registry import registered
from tests.spark import pools
from tests.spark.canonical import canonical, marks, typed
from tests.spark.changes import INT4, INT8, TEXT, Change, column, segment_table, table_schema
from tests.spark.pools import EVERY_KIND
from tests.spark.stories import Step, Story
from tests.spark.story_lake import FIRST_LSN, Shape, lake_rows
from tests.support.extent import FULL

_PAYLOAD = {"v": pools.INTEGER, "big": pools.STRING, "at": pools.TIMESTAMPS, "n": pools.MONEY, "l": pools.INTEGERS}
_KEYED = {"id": pools.BIGINT, **_PAYLOAD}
SHAPES = [
    replace(shape, mode=mode, name=f"{shape.name}, {mode}", track=shape.track if mode == "history" else ())
    for mode in ("soft", "history")
    for shape in (
        Shape("a bigint key", _KEYED, ("id",)),
        Shape("few keys", _KEYED, ("id",), keys=8, initial=4, changes=14),
        Shape("full old rows", {**_PAYLOAD, "id": pools.INTEGER}, ("id",), identity="f", keys=12),
        Shape("an identity index", {"v": pools.STRING, "i": pools.TIMESTAMPS, "j": pools.SMALLINT}, ("i", "j"), "i"),
        Shape("text keys", {"t": pools.STRING, **_PAYLOAD}, ("t",), keys=20),
        Shape("every kind", {f"c{n}": kind for n, kind in enumerate(EVERY_KIND)} | {"id": pools.UUIDS}, ("id",)),
        Shape("removals that are not sent", _KEYED, ("id",), publishes="iut", truncates=False),
        Shape("some columns", _KEYED, ("id",), track=("v", "at"), keys=10),
    )
]


class Lake:
    """Rows as a lake table of `kind` has them, committed to as every way does."""

    def __init__(self, kind: Kind, schema: TableSchema) -> None:
        self.kind = kind
        self.schema = schema
        self.names = [name for name, _ in kind.columns(schema, metadata=True)]
        self.rows = pa.table({})

    def begin(self, rows: pa.Table) -> None:
        self.rows = self.kind.arrived(rows)
        for name in self.names:
            if name not in self.rows.column_names:
                kind = pa.bool_() if name == envelope.IS_CURRENT else rows.schema.field(envelope.TS).type
                self.rows = self.rows.append_column(name, pa.nulls(len(rows), kind))
        self.rows = self.rows.select(self.names)

    def commit(self, parts: Iterable[Sequence[Versioned]], *, keyed: bool, removals_sent: bool) -> None:
        """Portions look for the rows that there were before all of them."""
        before, gone = self.rows, np.zeros(len(self.rows), dtype=bool)
        added: list[pa.Table] = []
        sweep: Any = None
        for part in parts:
            united = self.kind.united(part, self.schema, {})
            folded = self.kind.net(united, self.schema, keyed=keyed, removals_sent=removals_sent)
            assert isinstance(folded, Folded)
            sweep = folded.sweep
            if folded.append:
                added.append(folded.rows.select(self.names))
            elif len(folded.rows):
                added.append(self._settled(folded, before, gone).select(self.names))
        self.rows = pa.concat_tables(
            [self._swept(before.filter(pa.array(~gone)), sweep), *added], promote_options="default"
        )

    def _settled(self, folded: Folded, before: pa.Table, gone: Any) -> pa.Table:
        assert folded.settlement is not None
        only = folded.settlement.only
        counts = before[only].to_numpy(zero_copy_only=False) if only else np.ones(len(before), dtype=bool)
        at = {
            key: place
            for place, key in enumerate(_keys(before, self.schema, [c.name for c in self.schema.key_columns]))
            if counts[place]
        }
        looking = folded.rows[MATCH].to_numpy(zero_copy_only=False)
        names = [f"{KEY}{place}" for place, _ in enumerate(self.schema.key_columns)]
        found, places = [], []
        for number, key in enumerate(_keys(folded.rows, self.schema, names)):
            if looking[number] and key in at:
                found.append(number)
                places.append(at[key])
        assert not gone[places].any(), "two portions find one row"
        gone[places] = True
        old = before.take(pa.array(places, pa.int64()))
        return folded.settlement.settled(folded.rows, old, np.array(found, dtype=np.int64))

    def _swept(self, rows: pa.Table, sweep: Any) -> pa.Table:
        if sweep is None:
            return rows
        sign = envelope.DELETED_AT if envelope.DELETED_AT in self.names else envelope.TO_LSN
        values = {name: int("".join(c for c in value if c.isdigit()) or 0) for name, value in sweep.assignments}
        listed = rows.to_pylist()
        for row in listed:
            if row[sign] is None:
                for name, number in values.items():
                    kind = rows.schema.field(name).type
                    row[name] = (
                        pa.scalar(number, pa.int64()).cast(kind).as_py() if name != envelope.IS_CURRENT else False
                    )
        return pa.Table.from_pylist(listed, schema=rows.schema)


def _keys(rows: pa.Table, schema: TableSchema, names: list[str]) -> list[tuple[Any, ...]]:
    marked_rows = special_rows(rows[envelope.SPECIAL]) if envelope.SPECIAL in rows.column_names else {}
    arrays = []
    for place, (name, part) in enumerate(zip(names, schema.key_columns, strict=True)):
        arrays.append([canonical(value) for value in rows[name].to_pylist()])
        if part.lake.special:
            own = f"{KEY_SPECIAL}{place}"
            texts = rows[own] if own in rows.column_names else special_texts(marked_rows, part.name, len(rows))
            arrays.append(texts.to_pylist())
    return list(zip(*arrays, strict=True))


def _cutter(changes: list[Versioned]) -> Cutter:
    versions = [schema for _, schema in changes]
    plain, links = cutter_for(versions), Links()
    for rows, _ in changes:
        links.add(*plain.moves(rows))
    return replace(cutter_for(versions, links.groups()), each_transaction=True)


def _placed(steps: Iterable[Step], lsn: int) -> Iterator[Versioned]:
    for step in steps:
        lsn += 10
        ordinal = 0
        for changes, schema in step.parts:
            for change in changes:
                change.lsn, change.ordinal = lsn, ordinal
                ordinal += 1
            yield segment_table(changes, schema), schema


def _grouped(items: list[Step], choice: random.Random) -> Iterator[list[Step]]:
    while items:
        size = choice.randint(1, len(items))
        yield items[:size]
        items = items[size:]


@pytest.mark.parametrize("seed", range(6 if FULL else 2))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name.replace(" ", "_"))
def test_the_rows_do_not_depend_on_windows_or_portions(shape: Shape, seed: int) -> None:
    story, choice = Story(shape, seed), random.Random(seed)
    target = LakeTarget(**shape.targets[0])
    lake = Lake(registered(target.kind).configured(target), story.first)
    first = [
        Change("i", typed(row), special=marks(row), lsn=FIRST_LSN, ordinal=place)
        for place, row in enumerate(story.initial)
    ]
    lake.begin(segment_table(first, story.first))
    lsn = FIRST_LSN
    for phase in story.phases:
        for window in _grouped(phase.steps, choice):
            changes = list(_placed(window, lsn))
            lsn += 10 * len(window)
            removals_sent = shape.publishes == "iudt"
            if not changes:
                continue
            if choice.random() < 0.5:
                lake.commit([changes], keyed=False, removals_sent=removals_sent)
            else:
                limit = choice.choice([500, 4_000, 100_000])
                try:
                    cut = list(portions(iter(changes), _cutter(changes), limit=limit))
                except UnsupportedChange:
                    # The changes of one row, or of rows that moved, take more than that.
                    cut = [changes]
                lake.commit(cut, keyed=True, removals_sent=removals_sent)
            found = lake_rows(lake.rows.to_pylist(), shape)
            wanted = window[-1].after
            assert found == wanted, f"missing {list(wanted - found)[:3]}\nextra {list(found - wanted)[:3]}"


_MANY = 40_000
_MOVED = {
    "rows that come and change, with whole old rows": (
        "f",
        [Change("i", {"id": key, "v": 1, "big": "b"}) for key in range(_MANY)]
        + [Change("u", {"id": key, "v": 2, "big": "b"}, old={"id": key, "v": 1, "big": "b"}) for key in range(_MANY)],
    ),
    "one row that moves, and changes without its large value": (
        "d",
        [Change("u", {"id": 1, "v": 0}, old={"id": 0}, unchanged=("big",))]
        + [Change("u", {"id": 1, "v": value}, unchanged=("big",)) for value in range(_MANY)],
    ),
}


@pytest.mark.parametrize("case", _MOVED)
def test_rows_that_are_followed_one_by_one_cost_by_their_changes(case: str) -> None:
    """With whole old rows, and where a key changed, each change is followed in Python: a million took hours."""
    identity, changes = _MOVED[case]
    columns = column("id", 1, INT8, key=True), column("v", 2, INT4), column("big", 3, TEXT)
    schema, kind = table_schema(*columns, identity=identity), registered("history")
    for place, change in enumerate(changes):
        change.lsn, change.ordinal = 100 + place, 0
    united = kind.united([(segment_table(changes, schema), schema)], schema, {})
    began = time.process_time()
    kind.net(united, schema, keyed=True)
    assert time.process_time() - began < 12.0
