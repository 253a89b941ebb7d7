"""Integers and floats. (PostgreSQL: Numeric Types.)

Invariant: Arrow's parsers are trusted only for text that they read exactly. Its float parser turns
overflow into infinity and underflow into zero: such text is refused. There is one NaN: for PostgreSQL
all of its bit patterns are equal, and whoever compares rows by their bits must find them so.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.ingest.encode.types.binary import absent, fixed
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Texts

_INFINITY = ord("y")


def read_integer(texts: Texts, arrow_type: pa.DataType) -> Reading:
    return Reading(texts.cast(arrow_type))


def read_float(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """Shortest-precise text gives back the very bits; NaN, both infinities and minus zero are
    values like any other.
    """
    array = _with_one_nan(texts.cast(arrow_type))
    values = array.fill_null(1).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any() and np.any(texts.last_byte()[infinite] != _INFINITY):
        raise texts.unreadable(f"{arrow_type}: out of range")
    zero = values == 0
    if zero.any() and np.any(texts.length[zero] > len("-0")):
        raise texts.unreadable(f"{arrow_type}: out of range")
    return Reading(array)


def number_binary(name: str, dtype: str) -> Callable[[Texts, pa.DataType], Reading]:
    """The reader of a number that is sent as one `dtype`."""

    def read(fields: Texts, arrow_type: pa.DataType) -> Reading:
        values = fixed(fields, name, dtype)
        array = pa.array(values.astype(np.dtype(dtype).newbyteorder("=")), mask=absent(fields)).cast(arrow_type)
        return Reading(_with_one_nan(array) if pa.types.is_floating(arrow_type) else array)

    return read


def _with_one_nan(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(array), pa.scalar(np.nan, array.type), array)
