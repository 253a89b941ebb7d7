"""numeric as decimal, from text and from the binary form: digits to the base 10000, their weight, a
sign and how many decimals to show. (PostgreSQL: Numeric Types.)

Invariant: a value is in the decimal exactly, or it is special with the text that the server prints.
Arrow's decimal parser is trusted only for text that it reads exactly: it wraps silently, both at
more than 38 digits and when fewer grow past 128 bits on the way to the scale (688662.91 as
decimal(38,37)). Binary values with equal numbers of digits and equal weight are computed together,
in two limbs of 19 decimal digits, as many as 64 bits hold; nothing is rounded and nothing wraps.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.ingest.encode.types.binary import absent, spelled, unreadable
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Mask, Texts, try_cast
from sluice.protocol.buffers import Raw

_EXACT_DIGITS = 38
"""As many digits fit 128 bits whatever they are."""
_NINE = ord("9")
_NOT_FINITE_TEXT = r"\A(?:NaN|-?Infinity)\z"
_NUMERIC = r"\A(?:NaN|-?Infinity|-?\d+(?:\.\d+)?)\z"

_HEADER_BYTES = 8
_GROUP_DIGITS = 4
_BASE = 10**_GROUP_DIGITS
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_NOT_FINITE = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_FEW = 16
"""Groups to the base 10000: 38 digits have ten or eleven."""
_LIMB_DIGITS = 19
_MAX_DIGITS = 2 * _LIMB_DIGITS
_LOW_HALF, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)

Limbs = npt.NDArray[np.uint64]


def read_numeric(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """Special: NaN, both infinities, and any number with more digits than the type, before or after
    the point.
    """
    special = texts.present & (texts.last_byte() > _NINE)
    if special.any():
        texts.require(special, _NOT_FINITE_TEXT, "numeric")
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


def read_numeric_binary(fields: Texts, arrow_type: pa.DataType) -> Reading:
    header = _header(fields)
    sign = header[:, 2]
    negative = sign == _NEGATIVE
    finite = fields.present & (negative | (sign == _POSITIVE))
    others = fields.present & ~finite
    if others.any() and not np.isin(sign[others], list(_NOT_FINITE)).all():
        raise unreadable(fields, "numeric")
    high, low, held = _decimals(fields, header, finite, arrow_type)
    special = fields.present & ~held
    array = _array(high, low, negative, absent(fields, special), arrow_type)
    if not special.any():
        return Reading(array)
    return Reading(array, special, spelled(fields, special, lambda row: _text(fields, header, row)))


def _header(fields: Texts) -> npt.NDArray[np.int64]:
    """Number of groups, weight, sign and decimals of each value, zeros where none is present."""
    if np.any(fields.present & (fields.length < _HEADER_BYTES)):
        raise unreadable(fields, "numeric")
    windows = np.ndarray((len(fields.raw) - _HEADER_BYTES + 1,), f"V{_HEADER_BYTES}", buffer=fields.raw, strides=(1,))
    start = fields.start if fields.complete else np.where(fields.present, fields.start, 0)
    header = windows[start].view(">u2").reshape(-1, 4).astype(np.int64)
    header[:, 1] = (header[:, 1] ^ 0x8000) - 0x8000
    if not fields.complete:
        header[~fields.present] = 0
    if np.any(fields.present & (fields.length != _HEADER_BYTES + 2 * header[:, 0])):
        raise unreadable(fields, "numeric")
    return header


def _words(raw: Raw) -> npt.NDArray[np.uint16]:
    return np.ndarray((len(raw) - 1,), ">u2", buffer=raw, strides=(1,))


def _decimals(
    fields: Texts, header: npt.NDArray[np.int64], finite: Mask, arrow_type: pa.DataType
) -> tuple[Limbs, Limbs, Mask]:
    """The absolute values as integers of the type's scale in two limbs, and which rows have one
    within its precision.
    """
    high, low = np.zeros(len(fields), np.uint64), np.zeros(len(fields), np.uint64)
    groups, weight = header[:, 0], header[:, 1]
    # What has more than this cannot fit any decimal, and its text is made one by one.
    held = finite & (groups < _FEW) & (weight >= -_FEW) & (weight < _FEW)
    shape = np.where(held, groups * 2 * _FEW + weight + _FEW, -1)
    for key in np.flatnonzero(np.bincount(shape[held])).tolist():
        rows = np.flatnonzero(shape == key)
        _add_groups(
            fields, rows, (key // (2 * _FEW), key % (2 * _FEW) - _FEW), (high, low, held), scale=arrow_type.scale
        )
    precision = arrow_type.precision
    if precision > _LIMB_DIGITS:
        held &= high < 10 ** (precision - _LIMB_DIGITS)
    else:
        held &= (high == 0) & (low < np.uint64(10**precision))
    return high, low, held


def _add_groups(
    fields: Texts, rows: npt.NDArray[np.int64], shape: tuple[int, int], out: tuple[Limbs, Limbs, Mask], *, scale: int
) -> None:
    """Adds up the digits of `rows`, which all have `shape`: the number of groups and the weight of
    the first.
    """
    groups, weight = shape
    high, low, held = out
    words, start = _words(fields.raw), fields.start[rows] + _HEADER_BYTES
    sum_high, sum_low, fits = (
        np.zeros(len(rows), np.uint64),
        np.zeros(len(rows), np.uint64),
        np.ones(len(rows), np.bool_),
    )
    for group in range(groups):
        digits = words[start + 2 * group].astype(np.uint64)
        if np.any(digits >= _BASE):
            raise unreadable(fields, "numeric")
        exponent = _GROUP_DIGITS * (weight - group) + scale
        if exponent >= _MAX_DIGITS or exponent <= -_GROUP_DIGITS:
            fits &= digits == 0
        elif exponent < 0:
            fits &= digits % np.uint64(10**-exponent) == 0
            sum_low += digits // np.uint64(10**-exponent)
        elif exponent + _GROUP_DIGITS <= _LIMB_DIGITS:
            sum_low += digits * np.uint64(10**exponent)
        elif exponent < _LIMB_DIGITS:
            cut = np.uint64(10 ** (_LIMB_DIGITS - exponent))
            sum_high += digits // cut
            sum_low += digits % cut * np.uint64(10**exponent)
        else:
            fits &= digits < 10 ** min(_GROUP_DIGITS, _MAX_DIGITS - exponent)
            sum_high += np.where(fits, digits, 0).astype(np.uint64) * np.uint64(10 ** (exponent - _LIMB_DIGITS))
    high[rows], low[rows] = sum_high, sum_low
    held[rows] &= fits


def _array(high: Limbs, low: Limbs, negative: Mask, null: Mask | None, arrow_type: pa.DataType) -> pa.Array:
    upper, lower = _joined(high, low) if high.any() else (high, low)
    lower = np.where(negative, ~lower + np.uint64(1), lower)
    upper = np.where(negative, ~upper + (lower == 0), upper)
    values = np.empty((len(low), 2), "<u8")
    values[:, 0], values[:, 1] = lower, upper
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, len(low), [validity, pa.py_buffer(values)])


def _joined(high: Limbs, low: Limbs) -> tuple[Limbs, Limbs]:
    """`high` times ten to the nineteenth, and `low`, as the upper and the lower 64 bits of one
    number: the product of halves, by hand.
    """
    factor = np.uint64(10**_LIMB_DIGITS)
    a1, a0, b1, b0 = high >> _HALF, high & _LOW_HALF, factor >> _HALF, factor & _LOW_HALF
    middle = (a0 * b0 >> _HALF) + (a0 * b1 & _LOW_HALF) + (a1 * b0 & _LOW_HALF)
    lower = high * factor
    upper = a1 * b1 + (a0 * b1 >> _HALF) + (a1 * b0 >> _HALF) + (middle >> _HALF)
    total = lower + low
    return upper + (total < low), total


def _text(fields: Texts, header: npt.NDArray[np.int64], row: int) -> str:
    """As numeric_out prints it."""
    groups, weight, sign, decimals = (int(value) for value in header[row])
    if sign in _NOT_FINITE:
        return _NOT_FINITE[sign]
    start = int(fields.start[row]) + _HEADER_BYTES
    value = 0
    for digit in _words(fields.raw)[start : start + 2 * groups : 2].tolist():
        value = value * _BASE + digit
    # Moved to `decimals` places; the digits behind them are zeros by the type's own rule.
    exponent = _GROUP_DIGITS * (weight - groups + 1) + decimals
    value = value * 10**exponent if exponent >= 0 else value // 10**-exponent
    digits = f"{value:0{decimals + 1}d}"
    whole, part = (digits[:-decimals], "." + digits[-decimals:]) if decimals else (digits, "")
    return ("-" if sign == _NEGATIVE else "") + whole + part
