"""Parts of a table that are read at different moments, with the changes from between them, are the table as of the
last moment. The executors' work, without Spark.
"""

import itertools
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from sluice.contract import envelope
from sluice.contract.entries import Changes, Commits, Segment, Snapshot
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.values import TableState
from sluice_spark.distributed import snapshot_chunks
from sluice_spark.distributed.snapshot_chunks import JoinTask
from sluice_spark.distributed.task import WindowTask, in_bins
from sluice_spark.distributed.touched_keys import Touched, Untouched, touched
from sluice_spark.kinds import changelog, mirror
from sluice_spark.read.column_defaults import arrow_type
from sluice_spark.spool import StorePrefix
from tests.spark.changes import FLOAT8, MAP, NUMERIC, TEXT, TS, Change, Manifest, column, segment_table, table_schema
from tests.spark.heap import RANGES, Heap
from tests.spark.model import SCHEMA
from tests.support.extent import FULL


def window_of(
    place: StorePrefix, segments: list[Segment], state: TableState, schema: TableSchema, **more: Any
) -> WindowTask:
    says = {"after_lsn": 0, "limit": 1 << 28, "removals_sent": True, "metadata": True, "origins": {}, **more}
    bins = in_bins(segments, slots=2)
    return WindowTask(place, place, "", "", bins, schemas=state.schemas, schema=schema, kind=mirror.KIND, **says)


def joined(heap: Heap, columns: list[tuple[str, str]], *, limit: int = 1 << 28) -> list[dict[str, Any]]:
    """What the two stages make of the manifest of `heap`."""
    store = heap.place.open()
    state = load_state(store).tables["16385"]
    assert state.snapshot is not None
    bodies = [entry.body for entry, _ in read_entries(store, after_seq=0)]
    parts = [segment for body in bodies if isinstance(body, Snapshot) for segment in body.segments]
    first, last = state.snapshot.first_lsn, state.snapshot.snapshot_lsn
    between = snapshot_chunks.changes_between(store, state, after_lsn=first, until_lsn=last)
    segments: list[Segment] = [*parts, *between]
    window = window_of(heap.place, segments, state, SCHEMA, limit=limit, after_lsn=first, until_lsn=last)
    kinds = {"map<string,string>": MAP, "timestamp": TS, "decimal(20,0)": pa.decimal128(20, 0)}
    kinds["array<smallint>"] = pa.list_(pa.int16())
    schema = pa.schema([(name, kinds.get(kind) or arrow_type(kind)) for name, kind in columns])
    task = snapshot_chunks.task_of(window, parts, schema, slots=3)
    return _rows(task)


def _rows(task: JoinTask) -> list[dict[str, Any]]:
    by_part = defaultdict(list)
    for piece in snapshot_chunks.cut_joined(task, iter(range(len(task.window.bins)))):
        by_part[piece.part].append(piece)
    batches = [batch for pieces in by_part.values() for batch in snapshot_chunks.folded_rows(task, iter(pieces))]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema=task.schema).to_pylist()
    return found


@st.composite
def lives(draw: st.DrawFn) -> tuple[Heap, dict[int, dict[str, Any]]]:
    """A heap whose parts were read in any order while it was written to, with its rows as of the last."""
    heap = Heap()

    def pick(items: Sequence[Any]) -> Any:
        return draw(st.sampled_from(items))

    for step in range(draw(st.integers(0, 8))):
        heap.write(pick, step)
    reads = draw(st.permutations(range(RANGES)))
    for number, place in enumerate(reads):
        heap.read(place)
        after = {key: dict(row) for key, row in heap.rows.items()}
        for step in range(draw(st.integers(0, 8))):
            change = heap.write(pick, 100 * number + step)
            if change is not None:
                heap.manifest.transaction([change], SCHEMA)
    if draw(st.booleans()):
        heap.manifest.entry([])
    return heap, after


@settings(max_examples=50 if FULL else 20, deadline=None)
@given(life=lives(), limit=st.sampled_from([1 << 28, 2500]))
def test_whatever_rows_do_between_their_blocks_the_chunks_and_the_changes_are_the_table(
    life: tuple[Heap, dict[int, dict[str, Any]]], limit: int
) -> None:
    heap, expected = life
    heap.finish()
    found = joined(heap, mirror.KIND.columns(SCHEMA, metadata=True), limit=limit)
    assert {row["id"]: {name: row[name] for name in ("id", "v", "big", "at")} for row in found} == expected
    assert len(found) == len(expected)


def test_the_rows_of_a_changelog_say_that_they_were_inserted() -> None:
    heap = Heap()
    heap.rows, heap.blocks = {1: {"id": 1, "v": 1, "big": None, "at": None}}, {1: 7}
    heap.read(0)
    heap.blocks[1] = 0
    heap.rows[1]["v"] = 2
    heap.manifest.transaction([Change("u", dict(heap.rows[1]))], SCHEMA)
    for place in (1, 2, 3):
        heap.read(place)
    heap.finish()
    (row,) = joined(heap, changelog.KIND.columns(SCHEMA, metadata=True)[:-1])
    assert (row[envelope.OP], row["v"]) == ("i", 2)


def test_a_value_that_no_part_and_no_change_has_is_named_and_never_null() -> None:
    """The manifest refuses such a snapshot; so does what reads it."""
    heap = Heap()
    heap.rows, heap.blocks = {1: {"id": 1, "v": 1, "big": "kept", "at": None}}, {1: 7}
    heap.read(0)
    heap.blocks[1] = 0
    end = heap.manifest.lsn + 10
    change = Change("u", {"id": 1, "v": 2}, unchanged=("big",), lsn=end)
    segment = heap.manifest.segment([change], SCHEMA)
    hidden = Changes((replace(segment, unchanged={}),), Commits([end], [end], [7]))
    heap.manifest.append(hidden, through_lsn=end)
    for place in (1, 2, 3):
        heap.read(place)
    heap.finish()
    with pytest.raises(UnsupportedChange, match="was not sent"):
        joined(heap, mirror.KIND.columns(SCHEMA, metadata=True))


ALIKE = ("plumless", "buckeroo")
"""Their check sums by which keys are hashed are equal."""
assert len({zlib.crc32(text.encode()) for text in ALIKE}) == 1
NUMBERS: list[Any] = ["NaN", "Infinity", Decimal("1.00"), Decimal("2.00")]
TEN_AND_TWO = (10 << 16 | 2) + 4
"""What the catalog says of numeric(10, 2)."""
KEYED = table_schema(
    column("t", 1, TEXT, key=True),
    column("f", 2, FLOAT8, key=True),
    column("n", 3, NUMERIC, typmod=TEN_AND_TWO, key=True),
)
_numbers = itertools.count()


Key = tuple[str, float, Any]
keys = st.tuples(
    st.sampled_from([*ALIKE, "", "a"]), st.sampled_from([0.0, -0.0, 1.5, float("nan")]), st.sampled_from(NUMBERS)
)


def _spelled(key: Key) -> tuple[str, str, str]:
    return key[0], str(key[1] + 0.0), str(key[2])


def _row(key: Key) -> tuple[dict[str, Any], dict[str, str] | None]:
    marked = isinstance(key[2], str)
    return {"t": key[0], "f": key[1], "n": None if marked else key[2]}, {"n": key[2]} if marked else None


def _change(kind: str, key: Key, other: Key) -> Change:
    (now, special), (old, old_special) = _row(key), _row(other)
    if kind == "d":
        return Change("d", {}, old=old, old_special=old_special)
    if kind == "k":
        return Change("u", now, old=old, special=special, old_special=old_special)
    return Change(kind, now, special=special)


@settings(max_examples=60 if FULL else 25, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from("iudk"), keys, keys), min_size=1, max_size=6),
    chunk=st.lists(keys, min_size=1, max_size=12, unique_by=_spelled),
)
def test_exactly_the_rows_whose_key_was_touched_are_left_out(
    changes: list[tuple[str, Key, Key]], chunk: list[Key]
) -> None:
    place = StorePrefix(f"memory://touched-{next(_numbers)}", "shop/", ())
    manifest = Manifest(place.open())
    manifest.table(KEYED)
    for change in changes:
        manifest.transaction([_change(*change)], KEYED)
    segments = [segment for entry, _ in read_entries(place.open(), after_seq=2) for segment in entry.body.segments]  # type: ignore[union-attr]
    state = load_state(place.open()).tables["16385"]
    task = window_of(place, segments, state, KEYED, removals_sent=False)
    found: list[Touched] = [piece.value for piece in touched(task, iter(range(len(task.bins))))]
    untouched = Untouched(place, tuple(one.object for one in found if one.object))
    rows = [Change("i", values, special=special) for values, special in map(_row, chunk)]
    left = untouched.of(segment_table(rows, KEYED).append_column("number", pa.array(range(len(rows)))), KEYED)
    gone = {_spelled(one) for kind, key, other in changes for one in ([key] * (kind != "d") + [other] * (kind in "dk"))}
    assert left["number"].to_pylist() == [place for place, key in enumerate(chunk) if _spelled(key) not in gone]
    assert envelope.OP in left.column_names
