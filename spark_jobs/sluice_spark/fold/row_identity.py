"""Which rows are the same row: numbers for values, and the texts of values that their column cannot
hold.

Owns exactness of comparison: two rows get one number if and only if all their values are equal byte
for byte, NULL being a value of its own. Keys compare as Spark's join compares them (0.0 and -0.0
are one key); whole rows compare by bits. Pure: Arrow in, numpy out.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Claims = npt.NDArray[np.bool_]

OLD_WHOLE = "_sluice_old_whole"
"""A column of a window in which the replica identity became full: whether a change belongs to the
time since, and names its old row by all of its values.
"""


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """`column` as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def number_rows(columns: Sequence[pa.Array], length: int, *, bits: bool = False) -> Numbers:
    """Dense numbers from 0 for the distinct rows that `columns` spell. `bits` tells 0.0 from -0.0."""
    numbers = np.zeros(length, dtype=np.int64)
    for position, column in enumerate(columns):
        encoded = comparable(column, bits=bits).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if position == 0:
            numbers = codes
            continue
        _, dense = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
        numbers = dense.astype(np.int64)
    return numbers


def comparable(column: pa.Array, *, bits: bool) -> pa.Array:
    """`column` in a form whose equality is the one that counts."""
    kind = column.type
    if pa.types.is_floating(kind):
        if bits:
            return column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        return pc.add(column, pa.scalar(0.0, kind))
    if pa.types.is_nested(kind):
        return pa.array(
            [
                None if value is None else json.dumps(value, default=_spelled, sort_keys=True)
                for value in column.to_pylist()
            ],
            pa.string(),
        )
    return column


def _spelled(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def special_rows(column: pa.ChunkedArray | pa.Array) -> dict[int, dict[str, str]]:
    """Row position to marked values, for the few rows that have any."""
    array = whole(column)
    positions = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    if not len(positions):
        return {}
    values = array.take(pa.array(positions)).to_pylist()
    return {int(position): dict(value) for position, value in zip(positions, values, strict=True)}


def special_texts(rows: dict[int, dict[str, str]], name: str, length: int) -> pa.Array:
    """The marked text of column `name` for each of `length` rows, NULL where it has none."""
    if not rows:
        return pa.nulls(length, pa.string())
    texts: list[str | None] = [None] * length
    for position, marked in rows.items():
        texts[position] = marked.get(name)
    return pa.array(texts, pa.string())
