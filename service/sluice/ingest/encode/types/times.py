"""date, timestamp and timestamptz, in ISO form and in binary form: days or microseconds from
2000-01-01. (PostgreSQL: Date/Time Types, Date/Time Output.)

Invariant: what is typed lies between 0001-01-01 and 9999-12-31 (UTC for timestamptz), Spark's
range, and is exact to the microsecond. Infinity, years before Christ and years after 9999 are
special. Offsets are added up as printed, seconds included: local mean time needs them. A special
value from binary form has the very text that the server prints, for UTC and ISO as the session pins
them.
"""

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.binary import absent, fixed, spelled
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

_EPOCH_DAYS = 10_957
"""From 1970-01-01 to 2000-01-01."""
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162 - _EPOCH_DAYS, 2_932_896 - _EPOCH_DAYS
"""0001-01-01 and 9999-12-31."""
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
_INFINITIES = {2**31 - 1: "infinity", -(2**31): "-infinity"}
_LONG_INFINITIES = {2**63 - 1: "infinity", -(2**63): "-infinity"}


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


def read_date_binary(fields: Texts, arrow_type: pa.DataType) -> Reading:
    days = fixed(fields, "date", ">i4").astype(np.int64)
    special = (days < _FIRST_DAY) | (days > _LAST_DAY)
    array = pa.array((days + _EPOCH_DAYS).astype(np.int32), mask=absent(fields, special)).view(arrow_type)
    if not special.any():
        return Reading(array)
    return Reading(array, special, spelled(fields, special, lambda row: date_text(int(days[row]))))


def read_timestamp_binary(fields: Texts, arrow_type: pa.DataType) -> Reading:
    """Both kinds: an instant and a local time are the same number, and only the printed offset
    tells them apart.
    """
    counts = fixed(fields, "timestamp", ">i8").astype(np.int64)
    special = (counts < _FIRST_US) | (counts > _LAST_US)
    if not special.any():
        return Reading(pa.array(counts + _EPOCH_DAYS * _DAY_US, mask=absent(fields)).view(arrow_type))
    # Numbers near the ends of 64 bits would wrap: they are left out before the epoch is shifted.
    shifted = np.where(special, 0, counts) + _EPOCH_DAYS * _DAY_US
    zone = "+00" if arrow_type.tz else ""
    texts = spelled(fields, special, lambda row: timestamp_text(int(counts[row]), zone))
    return Reading(pa.array(shifted, mask=absent(fields, special)).view(arrow_type), special, texts)


def date_text(days: int) -> str:
    """As date_out prints a date that is `days` after 2000-01-01."""
    return _INFINITIES.get(days) or "{}{}".format(*_calendar(days))


def timestamp_text(microseconds: int, zone: str) -> str:
    """As timestamp_out and timestamptz_out print an instant that is `microseconds` after
    2000-01-01.
    """
    if microseconds in _LONG_INFINITIES:
        return _LONG_INFINITIES[microseconds]
    days, rest = divmod(microseconds, _DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    day, era = _calendar(days)
    decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{day} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{decimals}{zone}{era}"


def _calendar(days: int) -> tuple[str, str]:
    """Year, month and day, and the mark of years before Christ. Python's calendar has none of these
    and ends at 9999.

    Counted in eras of 400 years that begin in March, so that the leap day is the last of its year.
    """
    era, day = divmod(days + _EPOCH_DAYS + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    year += 400 * era + (month >= 10)
    month += 3 if month < 10 else -9
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"
