"""What the readers of binary forms share: numbers of a fixed width, and texts for the rows that
need one. (PostgreSQL: Logical Replication Message Formats, TupleData; CREATE TYPE.)

Invariant: no byte outside a value is ever part of one: every length is checked first.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sluice.errors import DecodeError
from sluice.ingest.encode.views import PADDING, Mask, Texts


def fixed(fields: Texts, name: str, dtype: str) -> npt.NDArray[np.generic]:
    """Each value as one number of `dtype`, 0 where no value is present. Raises DecodeError for a
    value of another width.
    """
    width = np.dtype(dtype).itemsize
    windows = np.ndarray((len(fields.raw) - width + 1,), f"V{width}", buffer=fields.raw, strides=(1,))
    if fields.complete:
        if np.any(fields.length != width):
            raise unreadable(fields, name)
        return windows[fields.start].view(dtype)
    if np.any(fields.present & (fields.length != width)):
        raise unreadable(fields, name)
    return np.where(fields.present, windows[np.where(fields.present, fields.start, 0)].view(dtype), 0)


def absent(fields: Texts, special: Mask | None = None) -> Mask | None:
    """Which rows are null: those without a value, and those whose value the type cannot hold. None
    when there are none.
    """
    mask = ~fields.present if special is None else ~fields.present | special
    return mask if mask.any() else None


def spelled(fields: Texts, special: Mask, spelling: Callable[[int], str]) -> Texts:
    """The texts of the `special` rows, rarely any, each made by `spelling`; no other row has one."""
    rows = np.flatnonzero(special)
    texts = [spelling(row).encode() for row in rows.tolist()]
    start, length = np.zeros(len(fields), np.int64), np.zeros(len(fields), np.int32)
    length[rows] = [len(text) for text in texts]
    start[rows] = np.cumsum(length[rows]) - length[rows]
    return Texts(b"".join(texts) + PADDING, start, length, special, fields.where)


def unreadable(fields: Texts, name: str) -> DecodeError:
    return DecodeError(f"{fields.where}: the server sent bytes that are no {name} in binary form")
