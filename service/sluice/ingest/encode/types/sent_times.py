"""date, timestamp and timestamptz in binary form: days or microseconds from 2000-01-01.
(PostgreSQL: Date/Time Types, Date/Time Output.)

Invariant: the same range is typed as in `times`, and what lies outside has the very text that the
server prints, for UTC and ISO as the session pins them.
"""

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.types.sent_bytes import absent, fixed, spelled
from sluice.ingest.encode.views import Texts

_EPOCH_DAYS = 10_957
"""From 1970-01-01 to 2000-01-01."""
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162 - _EPOCH_DAYS, 2_932_896 - _EPOCH_DAYS
"""0001-01-01 and 9999-12-31."""
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
_INFINITIES = {2**31 - 1: "infinity", -(2**31): "-infinity"}
_LONG_INFINITIES = {2**63 - 1: "infinity", -(2**63): "-infinity"}


def read_date(sent: Texts, arrow_type: pa.DataType) -> Reading:
    days = fixed(sent, "date", ">i4").astype(np.int64)
    special = (days < _FIRST_DAY) | (days > _LAST_DAY)
    array = pa.array((days + _EPOCH_DAYS).astype(np.int32), mask=absent(sent, special)).view(arrow_type)
    if not special.any():
        return Reading(array)
    return Reading(array, special, spelled(sent, special, lambda row: date_text(int(days[row]))))


def read_timestamp(sent: Texts, arrow_type: pa.DataType) -> Reading:
    """Both kinds: an instant and a local time are the same number, and only the printed offset
    tells them apart.
    """
    counts = fixed(sent, "timestamp", ">i8").astype(np.int64)
    special = (counts < _FIRST_US) | (counts > _LAST_US)
    if not special.any():
        return Reading(pa.array(counts + _EPOCH_DAYS * _DAY_US, mask=absent(sent)).view(arrow_type))
    # Numbers near the ends of 64 bits would wrap: they are left out before the epoch is shifted.
    shifted = np.where(special, 0, counts) + _EPOCH_DAYS * _DAY_US
    zone = "+00" if arrow_type.tz else ""
    texts = spelled(sent, special, lambda row: timestamp_text(int(counts[row]), zone))
    return Reading(pa.array(shifted, mask=absent(sent, special)).view(arrow_type), special, texts)


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
