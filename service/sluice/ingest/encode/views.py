"""Values of one column as places in a buffer, and Arrow views over them.

Invariant: a view never reaches outside the buffer and never outlives it in a result: every cast
copies. Nothing here knows a PostgreSQL type, and nothing loops over values. (Arrow: Columnar
Format, Variable-size Binary View Layout.)
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import DecodeError, UnsupportedChange
from sluice.protocol.buffers import Raw

INLINE = 12
"""Bytes that a view holds itself; a longer value is a prefix and an offset."""
PADDING = bytes(16)
"""A buffer ends in at least this much, so that INLINE bytes may be read at any value's start."""

_VIEW = np.dtype(
    {
        "names": ["length", "inline", "buffer", "offset"],
        "formats": ["<i4", f"V{INLINE}", "<i4", "<i4"],
        "offsets": [0, 4, 8, 12],
        "itemsize": 16,
    }
)  # fmt: skip

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Texts:
    """`length[i]` bytes at `raw[start[i]]` for each row that is `present`; the other rows have no
    value and their places mean nothing.

    `raw` ends in PADDING and is shorter than 2 GiB. `where` names schema, table and column for
    errors.
    """

    raw: Raw
    start: Places
    length: Lengths
    present: Mask
    where: str
    read_once: bool = False
    """Whether nobody reads these bytes again who has them read now: their memory may then be given back on the way."""

    def __len__(self) -> int:
        return len(self.start)

    @staticmethod
    def of(array: pa.Array, where: str) -> "Texts":
        """The values of a string array, copied; nulls are not present."""
        _, offsets, content = array.buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        present = array.is_valid().to_numpy(zero_copy_only=False)
        raw = (content.to_pybytes() if content is not None else b"") + PADDING
        return Texts(raw, bounds[:-1].astype(np.int64), np.diff(bounds), present, where)

    @cached_property
    def complete(self) -> bool:
        """Whether every row is present."""
        return bool(self.present.all())

    @cached_property
    def buffer(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.raw, np.uint8)

    def byte(self, position: Places | int) -> npt.NDArray[np.uint8]:
        """The byte at `position` within each value; rows that are too short or absent give whatever
        lies there.
        """
        return np.take(self.buffer, self.start + position, mode="clip")

    def last_byte(self) -> npt.NDArray[np.uint8]:
        return self.byte(self.length.astype(np.int64) - 1)

    def only(self, mask: Mask) -> "Texts":
        """The same rows, present only where `mask` holds too."""
        return replace(self, present=self.present & mask)

    def rows(self, positions: Places) -> "Texts":
        """The rows at `positions`."""
        return replace(
            self, start=self.start[positions], length=self.length[positions], present=self.present[positions]
        )

    def trimmed(self, *, front: int = 0, back: Places | int = 0) -> "Texts":
        """Every value without its first and last bytes. The caller knows that they are there."""
        return replace(self, start=self.start + front, length=(self.length - front - back).astype(np.int32))

    def views(self) -> pa.Array:
        """A `binary_view` array, null where no value is present. To cast, not to compare: short
        values keep bytes of their neighbours.
        """
        count = len(self)
        windows = np.ndarray((max(len(self.raw) - INLINE + 1, 0),), f"V{INLINE}", buffer=self.raw, strides=(1,))
        out = np.empty(count, _VIEW)
        if self.complete:
            start, length = self.start, self.length
        else:
            start, length = np.where(self.present, self.start, 0), np.where(self.present, self.length, 0)
        out["length"] = length
        out["inline"] = windows[start]
        long = length > INLINE
        if long.any():
            out["buffer"][long] = 0
            out["offset"][long] = start[long]
        validity = None if self.complete else pa.py_buffer(np.packbits(self.present, bitorder="little"))
        return pa.Array.from_buffers(pa.binary_view(), count, [validity, pa.py_buffer(out), pa.py_buffer(self.raw)])

    def binary(self) -> pa.Array:
        return self.views().cast(pa.binary())

    def string(self) -> pa.Array:
        """The values as text. Raises UnsupportedChange where they are not UTF-8, which no Arrow
        string may hold.
        """
        array = try_cast(self.views(), pa.string())
        if array is None:
            raise UnsupportedChange(
                f"{self.where} holds text that is not UTF-8",
                hint="this happens in databases with encoding SQL_ASCII; correct the values, then resync the table",
            )
        return array

    def cast(self, arrow_type: pa.DataType) -> pa.Array:
        """The values as `arrow_type`, parsed by Arrow. Raises DecodeError where one cannot be
        parsed.
        """
        array = try_cast(self.views(), arrow_type)
        if array is None:
            raise self.unreadable(str(arrow_type))
        return array

    def require(self, mask: Mask, pattern: str, expected: str) -> None:
        """Raises DecodeError unless every present value in `mask`, rarely any, matches the regular
        expression.
        """
        chosen = np.flatnonzero(mask & self.present)
        if len(chosen) and not pc.all(pc.match_substring_regex(self.rows(chosen).binary(), pattern)).as_py():
            raise self.unreadable(expected)

    def unreadable(self, expected: str) -> DecodeError:
        return DecodeError(
            f"{self.where}: the server sent text that is no {expected}",
            hint="the session pins DateStyle, bytea_output and the like; a pooler in between may have changed them",
        )


def try_cast(array: pa.Array, arrow_type: pa.DataType) -> pa.Array | None:
    """`array` as `arrow_type`, None where Arrow refuses. Arrow's own error quotes the value, so it
    goes no further.
    """
    try:
        return array.cast(arrow_type)
    except pa.ArrowInvalid:
        return None


def null_mask(present: Mask) -> pa.Array | None:
    """`present` as the mask that Arrow's nested arrays take: true means null. None when nothing is
    null.
    """
    return None if present.all() else pa.array(~present)


def offsets_of(counts: npt.NDArray[np.int64]) -> pa.Array:
    """Arrow list offsets for `counts` elements in each row."""
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
