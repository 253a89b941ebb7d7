"""date, timestamp and timestamptz in ISO form. (PostgreSQL: Date/Time Types, Date/Time Output.)

Invariant: what is typed lies between 0001-01-01 and 9999-12-31 (UTC for timestamptz), Spark's
range, and is exact to the microsecond. Infinity, years before Christ and years after 9999 are
special. Offsets are added up as printed, seconds included: local mean time needs them.
"""

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Mask, Places, Texts

_DASH, _PLUS, _NINE = b"-+9"
_DATE_LENGTH = len("2024-01-31")
_SHORTEST, _LONGEST = len("2024-01-31 23:59:59"), len("2024-01-31 23:59:59.999999")
_UNHELD = r"\A(?:-?infinity|\d{4,}-\d\d-\d\d.* BC|\d{5,}-\d\d-\d\d.*)\z"
_UTC = int.from_bytes(b"\0+00", "little")
_UTC_MASK = int.from_bytes(b"\0\xff\xff\xff", "little")
_MIN_US = -62_135_596_800_000_000
_MAX_US = 253_402_300_799_999_999
_ZONE_FORMS = (len("+05"), len("+05:30"), len("+05:30:15"))


def read_date(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """Every date of a four-digit year after Christ has ten characters, and nothing else has."""
    plain = texts.length == _DATE_LENGTH
    ordinary, special = _part(texts, plain, "date")
    return Reading(_parse(ordinary, arrow_type), special)


def read_timestamp(texts: Texts, arrow_type: pa.DataType) -> Reading:
    ordinary, special = _part(texts, _has_plain_year(texts), "timestamp")
    return Reading(_parse(ordinary, arrow_type), special)


def read_timestamptz(texts: Texts, arrow_type: pa.DataType) -> Reading:
    ordinary, special = _part(texts, _has_plain_year(texts), "timestamptz")
    if np.all(_ends_in_utc(ordinary) | ~ordinary.present):
        return Reading(_parse(ordinary.trimmed(back=len("+00")), pa.timestamp("us")).view(arrow_type), special)
    zone_length, east_us = _zone(ordinary)
    local = _parse(ordinary.trimmed(back=zone_length), pa.timestamp("us"))
    utc = local.view(pa.int64()).fill_null(0).to_numpy() - east_us
    outside = ordinary.present & ((utc < _MIN_US) | (utc > _MAX_US))
    held = ordinary.present & ~outside
    special = outside if special is None else special | outside
    return Reading(pa.array(utc, mask=~held).view(arrow_type), special if special.any() else None)


def _part(texts: Texts, plain: Mask, expected: str) -> tuple[Texts, Mask | None]:
    """The ordinary values, and the mask of the special ones if there are any."""
    special = texts.present & ~plain
    if not special.any():
        return texts, None
    texts.require(special, _UNHELD, expected)
    return texts.only(plain), special


def _has_plain_year(texts: Texts) -> Mask:
    """Four digits then a dash, and no BC behind: infinity has neither."""
    plain: Mask = (texts.byte(4) == _DASH) & (texts.last_byte() <= _NINE)
    return plain


def _parse(texts: Texts, arrow_type: pa.DataType) -> pa.Array:
    if arrow_type != pa.date32():
        right = (texts.length >= _SHORTEST) & (texts.length <= _LONGEST)
        if not np.all(right | ~texts.present):
            raise texts.unreadable("timestamp in ISO form")
    # Arrow parses times from plain strings only, not from views.
    return _checked(texts, texts.string(), arrow_type)


def _checked(texts: Texts, strings: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    try:
        return strings.cast(arrow_type)
    except pa.ArrowInvalid:
        raise texts.unreadable(f"{arrow_type} in ISO form") from None


def _ends_in_utc(texts: Texts) -> Mask:
    """Whether the last three bytes are `+00`, read as one word."""
    words = np.ndarray((len(texts.raw) - 3,), "<u4", buffer=texts.raw, strides=(1,))
    ends: Mask = (words[np.maximum(texts.start + texts.length - 4, 0)] & _UTC_MASK) == _UTC
    return ends


def _zone(texts: Texts) -> tuple[Places, Places]:
    """How many bytes the offset takes in each value, and how many microseconds east of UTC it is."""
    length = texts.length.astype(np.int64)
    taken = np.zeros(len(texts), np.int64)
    for form in _ZONE_FORMS:
        sign = texts.byte(length - form)
        taken[(taken == 0) & ((sign == _PLUS) | (sign == _DASH))] = form
    if np.any((taken == 0) & texts.present):
        raise texts.unreadable("timestamp with an offset")
    at = length - taken
    seconds = np.zeros(len(texts), np.int64)
    for place, unit in ((1, 3600), (4, 60), (7, 1)):
        digits = _two_digits(texts, at + place)
        seconds += np.where(taken > place, digits * unit, 0)
    return taken, np.where(texts.byte(at) == _DASH, -seconds, seconds) * 1_000_000


def _two_digits(texts: Texts, place: Places) -> Places:
    tens = texts.byte(place).astype(np.int64) - ord("0")
    ones = texts.byte(place + 1).astype(np.int64) - ord("0")
    return tens * 10 + ones
