r"""One-dimensional arrays from PostgreSQL's array text, all rows of a column in one pass over their
joined bytes.

Invariant: an array is a list only if it has one dimension, lower bound 1 and elements that the
element type holds; otherwise its row is special, whole. A quoted "NULL" is text, an unquoted NULL
is null. (PostgreSQL: Arrays, Array Input and Output Syntax.)

array_out quotes an element that is empty, spells NULL or holds a brace, comma, quote, backslash or
white space, and puts a backslash before each quote and backslash within. So outside quotes every
comma separates and every brace is a dimension's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import PADDING, Mask, Places, Texts, null_mask, offsets_of

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE, _BRACKET = b'"\\,{}['
_NULL_WORD = int.from_bytes(b"NULL", "little")

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Joined:
    """The column's texts laid end to end: row i is `data[bound[i] : bound[i + 1]]`, empty where no
    value is present.
    """

    data: Bytes
    bound: Places


def read_array(texts: Texts, arrow_type: pa.DataType, read_element: Callable[[Texts, pa.DataType], Reading]) -> Reading:
    joined = _join(texts)
    escapers = _escapers(joined.data)
    outside = _outside_quotes(joined, escapers, texts)
    flat = texts.present & _is_flat(joined, outside, texts)
    elements, counts = _elements(joined, outside, escapers, flat=flat, where=texts.where)
    read = read_element(elements, arrow_type.value_type)
    values = read.array
    if read.special is not None:
        row_of = np.repeat(np.arange(len(texts)), counts)
        flat[row_of[read.special]] = False
        values = values.filter(pa.array(flat[row_of]))
        counts = np.where(flat, counts, 0)
    special = texts.present & ~flat
    array = pa.ListArray.from_arrays(offsets_of(counts), values, type=arrow_type, mask=null_mask(flat))
    return Reading(array, special if special.any() else None)


def _join(texts: Texts) -> _Joined:
    joined = texts.binary()
    _, offsets, data = joined.buffers()
    bound = np.frombuffer(offsets, np.int32, len(texts) + 1).astype(np.int64)
    return _Joined(np.frombuffer(data, np.uint8, int(bound[-1])) if data else np.empty(0, np.uint8), bound)


def _escapers(data: Bytes) -> Places:
    """Positions of backslashes that escape the byte behind them: every other one of each run."""
    backslashes = np.flatnonzero(data == _BACKSLASH)
    if not len(backslashes):
        return backslashes
    index = np.arange(len(backslashes))
    begins = np.concatenate(([True], np.diff(backslashes) != 1))
    run_start = np.maximum.accumulate(np.where(begins, index, 0))
    escapers: Places = backslashes[(index - run_start) % 2 == 0]
    return escapers


def _outside_quotes(joined: _Joined, escapers: Places, texts: Texts) -> Mask:
    """Which bytes lie outside quotes. A closing quote does, an opening one does not."""
    quotes = joined.data == _QUOTE
    if len(escapers):
        # A backslash in the very last place would escape what is not there; the row then lacks its
        # closing quote and is refused below.
        quotes[np.minimum(escapers + 1, len(quotes) - 1)] = False
    # Sums wrap at 256, which leaves odd and even alone.
    outside: Mask = np.cumsum(quotes, dtype=np.uint8) & 1 == 0
    last = joined.bound[1:][texts.present] - 1
    if np.any(texts.length[texts.present] == 0) or not np.all(outside[last]):
        raise texts.unreadable("array")
    return outside


def _is_flat(joined: _Joined, outside: Mask, texts: Texts) -> Mask:
    """Which rows have one dimension that begins at 1. The others begin with a bracket or hold a
    second opening brace.
    """
    first = np.take(joined.data, joined.bound[:-1], mode="clip") if len(joined.data) else np.zeros(len(texts), np.uint8)
    if np.any(texts.present & (first != _OPEN) & (first != _BRACKET)):
        raise texts.unreadable("array")
    braces = np.flatnonzero((joined.data == _OPEN) & outside)
    flat: Mask = (first == _OPEN) & (_count_between(braces, joined.bound) == 1)
    ends_right = np.take(joined.data, joined.bound[1:] - 1, mode="clip") == _CLOSE if len(joined.data) else flat
    if np.any(flat & texts.present & ~ends_right):
        raise texts.unreadable("array")
    return flat


def _elements(joined: _Joined, outside: Mask, escapers: Places, *, flat: Mask, where: str) -> tuple[Texts, Places]:
    """All elements of the flat rows in order, without quotes and escapes, and how many each row
    has.
    """
    length = np.diff(joined.bound)
    filled = flat & (length > len("{}"))
    commas = _inside_rows(np.flatnonzero((joined.data == _COMMA) & outside), joined.bound, filled)
    counts = np.where(filled, _count_between(commas, joined.bound) + 1, 0)
    start = np.sort(np.concatenate((joined.bound[:-1][filled], commas))) + 1
    end = np.sort(np.concatenate((joined.bound[1:][filled] - 1, commas)))
    raw = joined.data.tobytes() + PADDING
    quoted = np.frombuffer(raw, np.uint8)[start] == _QUOTE
    words = np.ndarray((len(raw) - 3,), "<u4", buffer=raw, strides=(1,))
    # Quotes still count here, so a quoted "NULL" is two longer than the word.
    present = (end - start != len("NULL")) | (words[start] != _NULL_WORD)
    start, end = start + quoted, end - quoted
    if len(escapers):
        raw = np.delete(joined.data, escapers).tobytes() + PADDING
        start, end = start - np.searchsorted(escapers, start), end - np.searchsorted(escapers, end)
    return Texts(raw, start, (end - start).astype(np.int32), present, where), counts


def _count_between(positions: Places, bound: Places) -> Places:
    """How many of the ascending `positions` lie in each row."""
    return np.diff(np.searchsorted(positions, bound))


def _inside_rows(positions: Places, bound: Places, wanted: Mask) -> Places:
    """Those of the ascending `positions` that lie in wanted rows."""
    if wanted.all():
        return positions
    return positions[np.repeat(wanted, _count_between(positions, bound))]
