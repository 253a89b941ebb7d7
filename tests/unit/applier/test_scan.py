"""The rows that a comparison lists: those of the ranges asked for, and those that have changed since."""

import numpy as np
import pyarrow as pa

from sluice.contract import envelope
from sluice_spark.distributed.stages import Piece
from sluice_spark.read.changes import ARROW_MAP
from sluice_spark.verify.hashing import Hashes
from sluice_spark.verify.scan import ScanTask, scan, typed
from tests.support.manifests import schema

BITS = 6


def scanned(task: ScanTask) -> tuple[set[str], set[int]]:
    """Keys of the rows that are listed, and of those handed back because they changed."""
    rows = pa.table({"c0": pa.array(range(2000), pa.int64()), "c1": pa.array(range(2000), pa.int64())})
    listed: set[str] = set()
    changed: set[int] = set()
    for piece in scan(task, rows.to_batches(max_chunksize=300)):
        assert isinstance(piece, Piece)
        kind, value = piece.value
        if kind == "rows":
            listed |= {str(key[0]) for _, _, key in value}
        elif kind == "changed":
            changed |= set(value["c1"].to_pylist())
    return listed, changed


def task(changed: Hashes, *ranges: int) -> ScanTask:
    return ScanTask(schema(version=2), ("c1", "c2"), 7, BITS, False, changed, ranges)


def test_what_is_listed_are_the_rows_of_the_ranges_and_all_that_changed() -> None:
    keys = task(np.empty(0, np.uint64)).keys.hashes(pa.table({"c1": pa.array(range(2000), pa.int64())}))
    numbers = (keys & np.uint64((1 << BITS) - 1)).tolist()
    moved = np.sort(keys[[3, 500]])
    listed, changed = scanned(task(moved, 5, 9))
    assert changed == {3, 500}
    assert listed == {str(key) for key, number in enumerate(numbers) if number in (5, 9)} - {"3", "500"}


def test_marked_values_come_as_text_and_are_those_of_a_segment() -> None:
    rows = pa.table({"id": [1, 2, 3], envelope.SPECIAL: ['{"a\\"":"NaN","b":"\\u00e9 \\\\"}', None, "{}"]})
    found = typed(rows)[envelope.SPECIAL]
    assert (found.type, found.to_pylist()) == (ARROW_MAP, [[('a"', "NaN"), ("b", "é \\")], None, []])
    assert typed(rows.slice(1, 1))[envelope.SPECIAL].to_pylist() == [None]
    assert typed(rows.select(["id"])) == rows.select(["id"])
