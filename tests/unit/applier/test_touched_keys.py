"""Rows of a later chunk are left out if and only if a change since the first moment touched their key."""

import itertools
import zlib
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from sluice.contract import envelope
from sluice.manifest.reader import load_state, read_entries
from sluice_spark.distributed.task import WindowTask, in_bins
from sluice_spark.distributed.touched_keys import Touched, Untouched, touched
from sluice_spark.kinds import mirror
from sluice_spark.spool import StorePrefix
from tests.spark.changes import FLOAT8, NUMERIC, TEXT, Change, Manifest, column, segment_table, table_schema

ALIKE = ("plumless", "buckeroo")
"""Their check sums by which keys are hashed are equal."""
assert len({zlib.crc32(text.encode()) for text in ALIKE}) == 1
NUMBERS: list[Any] = ["NaN", "Infinity", Decimal("1.00"), Decimal("2.00")]
TEN_AND_TWO = (10 << 16 | 2) + 4
"""What the catalog says of numeric(10, 2)."""
SCHEMA = table_schema(
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
    """Its values, and those that are marked."""
    marked = isinstance(key[2], str)
    return {"t": key[0], "f": key[1], "n": None if marked else key[2]}, {"n": key[2]} if marked else None


def _change(kind: str, key: Key, other: Key) -> Change:
    (now, special), (old, old_special) = _row(key), _row(other)
    if kind == "d":
        return Change("d", {}, old=old, old_special=old_special)
    if kind == "k":
        return Change("u", now, old=old, special=special, old_special=old_special)
    return Change(kind, now, special=special)


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from("iudk"), keys, keys), min_size=1, max_size=6),
    chunk=st.lists(keys, min_size=1, max_size=12, unique_by=_spelled),
)
def test_exactly_the_rows_whose_key_was_touched_are_left_out(
    changes: list[tuple[str, Key, Key]], chunk: list[Key]
) -> None:
    place = StorePrefix(f"memory://touched-{next(_numbers)}", "shop/", ())
    manifest = Manifest(place.open())
    manifest.table(SCHEMA)
    for change in changes:
        manifest.transaction([_change(*change)], SCHEMA)
    segments = [segment for entry, _ in read_entries(place.open(), after_seq=2) for segment in entry.body.segments]  # type: ignore[union-attr]
    state = load_state(place.open()).tables["16385"]
    task = WindowTask(place, place, "", "scratch/", in_bins(segments, slots=2), 0, state.schemas, SCHEMA, 1 << 28, mirror.KIND, False, True, {})  # fmt: skip  # noqa: E501
    found: list[Touched] = [piece.value for piece in touched(task, iter(range(len(task.bins))))]
    untouched = Untouched(place, tuple(one.object for one in found if one.object))
    rows = [Change("i", values, special=special) for values, special in map(_row, chunk)]
    left = untouched.of(segment_table(rows, SCHEMA).append_column("number", pa.array(range(len(rows)))), SCHEMA)
    gone = {_spelled(one) for kind, key, other in changes for one in ([key] * (kind != "d") + [other] * (kind in "dk"))}
    assert left["number"].to_pylist() == [place for place, key in enumerate(chunk) if _spelled(key) not in gone]
    assert envelope.OP in left.column_names
