"""Integers, floats and numeric. (PostgreSQL: Numeric Types.)

Invariant: Arrow's parsers are trusted only for text that they read exactly. Its decimal parser
wraps silently, both at more than 38 digits and when fewer grow past 128 bits on the way to the
scale (688662.91 as decimal(38,37)); its float parser turns overflow into infinity and underflow
into zero. None of these is let near such text unseen.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Mask, Texts, try_cast

_EXACT_DIGITS = 38
"""As many digits fit 128 bits whatever they are."""
_NINE = ord("9")
_INFINITY = ord("y")
_NOT_FINITE = r"\A(?:NaN|-?Infinity)\z"
_NUMERIC = r"\A(?:NaN|-?Infinity|-?\d+(?:\.\d+)?)\z"


def read_integer(texts: Texts, arrow_type: pa.DataType) -> Reading:
    return Reading(texts.cast(arrow_type))


def read_float(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """Shortest-precise text gives back the very bits; NaN, both infinities and minus zero are
    values like any other.
    """
    array = texts.cast(arrow_type)
    values = array.fill_null(1).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any() and np.any(texts.last_byte()[infinite] != _INFINITY):
        raise texts.unreadable(f"{arrow_type}: out of range")
    zero = values == 0
    if zero.any() and np.any(texts.length[zero] > len("-0")):
        raise texts.unreadable(f"{arrow_type}: out of range")
    return Reading(array)


def read_numeric(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """Special: NaN, both infinities, and any number with more digits than the type, before or after
    the point.
    """
    special = texts.present & (texts.last_byte() > _NINE)
    if special.any():
        texts.require(special, _NOT_FINITE, "numeric")
        finite = texts.only(~special)
    else:
        finite = texts
    array = _cast_short(finite, arrow_type)
    if array is None:
        special |= _does_not_fit(finite, arrow_type)
        texts.require(special, _NUMERIC, "numeric")
        array = texts.only(~special).cast(arrow_type)
    return Reading(array, special if special.any() else None)


def _cast_short(texts: Texts, arrow_type: pa.DataType) -> pa.Array | None:
    """The values if they are so short that no step of Arrow's parser can leave 128 bits, and all
    fit; else None.
    """
    longest = int(texts.length.max(initial=0, where=texts.present))
    return try_cast(texts.views(), arrow_type) if longest + arrow_type.scale <= _EXACT_DIGITS else None


def _does_not_fit(texts: Texts, arrow_type: pa.DataType) -> Mask:
    """Which values need more digits than the type has."""
    whole, scale = arrow_type.precision - arrow_type.scale, arrow_type.scale
    fits = pc.match_substring_regex(texts.binary(), rf"\A-?0?\d{{0,{whole}}}(?:\.\d{{0,{scale}}})?\z")
    out: Mask = ~fits.fill_null(True).to_numpy(zero_copy_only=False)  # noqa: FBT003 - Arrow's signature
    return out
