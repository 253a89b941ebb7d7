"""The envelope's marks: which values were not sent, and the exact text of those that a column's
type cannot hold.

Invariant: together with the typed columns they leave nothing out. A NULL that is neither unchanged
nor special was NULL at the source.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.views import Mask, Places, Texts, null_mask, offsets_of

UNCHANGED_TYPE = pa.list_(pa.field("element", pa.int16()))
SPECIAL_TYPE = pa.map_(pa.string(), pa.string())


def unchanged_column(row_count: int, marks: Sequence[tuple[int, Mask]]) -> pa.Array:
    """Per row the attnums whose mask holds, null where there are none. `marks` pairs an attnum with
    its column's mask.
    """
    if not marks:
        return pa.nulls(row_count, UNCHANGED_TYPE)
    attnums = np.array([attnum for attnum, _ in marks], np.int16)
    rows, columns = np.nonzero(np.column_stack([mask for _, mask in marks]))
    counts = np.bincount(rows, minlength=row_count)
    return pa.ListArray.from_arrays(
        offsets_of(counts), pa.array(attnums[columns]), type=UNCHANGED_TYPE, mask=null_mask(counts > 0)
    )


def special_column(row_count: int, marks: Sequence[tuple[str, Texts, Mask]]) -> pa.Array:
    """Per row a map of column name to exact text where the column's mask holds, null where there
    are none.
    """
    if not marks:
        return pa.nulls(row_count, SPECIAL_TYPE)
    places: list[Places] = [np.flatnonzero(mask) for _, _, mask in marks]
    rows = np.concatenate(places)
    order = np.argsort(rows, kind="stable")
    column = np.repeat(np.arange(len(marks)), [len(place) for place in places])[order]
    texts = pa.concat_arrays([texts.rows(place).string() for (_, texts, _), place in zip(marks, places, strict=True)])
    names = pa.array([name for name, _, _ in marks], pa.string())
    counts = np.bincount(rows, minlength=row_count)
    return pa.MapArray.from_arrays(
        offsets_of(counts),
        names.take(pa.array(column)),
        texts.take(pa.array(order)),
        type=SPECIAL_TYPE,
        mask=null_mask(counts > 0),
    )
