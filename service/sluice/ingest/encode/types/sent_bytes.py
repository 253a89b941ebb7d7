"""Bytes of one column in binary form, before a type is known: numbers of a fixed width, and texts
for the rows that need one.

Invariant: no byte outside a value is ever part of one, for every length is checked first.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sluice.errors import DecodeError
from sluice.ingest.encode.views import PADDING, Mask, Texts


def fixed(sent: Texts, name: str, dtype: str) -> npt.NDArray[np.generic]:
    """Each value as one number of `dtype`, 0 where no value is present. Raises DecodeError for a
    value of another width.
    """
    width = np.dtype(dtype).itemsize
    windows = np.ndarray((len(sent.raw) - width + 1,), f"V{width}", buffer=sent.raw, strides=(1,))
    if sent.complete:
        if np.any(sent.length != width):
            raise unreadable(sent, name)
        return windows[sent.start].view(dtype)
    if np.any(sent.present & (sent.length != width)):
        raise unreadable(sent, name)
    return np.where(sent.present, windows[np.where(sent.present, sent.start, 0)].view(dtype), 0)


def absent(sent: Texts, special: Mask | None = None) -> Mask | None:
    """Which rows are null: those without a value, and those whose value the type cannot hold. None
    when there are none.
    """
    mask = ~sent.present if special is None else ~sent.present | special
    return mask if mask.any() else None


def spelled(sent: Texts, special: Mask, spelling: Callable[[int], str]) -> Texts:
    """The texts of the `special` rows, rarely any, each made by `spelling`; no other row has one."""
    rows = np.flatnonzero(special)
    texts = [spelling(row).encode() for row in rows.tolist()]
    start, length = np.zeros(len(sent), np.int64), np.zeros(len(sent), np.int32)
    length[rows] = [len(text) for text in texts]
    start[rows] = np.cumsum(length[rows]) - length[rows]
    return Texts(b"".join(texts) + PADDING, start, length, special, sent.where)


def unreadable(sent: Texts, name: str) -> DecodeError:
    return DecodeError(f"{sent.where}: the server sent bytes that are no {name} in binary form")
