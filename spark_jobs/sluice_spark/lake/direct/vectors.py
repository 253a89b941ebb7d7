"""Deletion vectors: which rows of a data file are removed, as Delta stores it.

Owns the form of the bytes and their check sums. Vectors are always files of their own: VACUUM fails
on a vector inside the log. (Delta protocol: Deletion Vectors, Deletion Vector Format.)
"""

import base64
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from sluice.errors import UnsupportedChange
from sluice_spark.fold.row_identity import Claims
from sluice_spark.lake.foreign_commits import B85, Z85, vector_file

Positions = npt.NDArray[np.int64]
_MAGIC = struct.pack("<i", 1681511377)
_VERSION = b"\x01"
_FRAME = 8
"""Bytes around a vector: its length before, its check sum behind."""


class VectorFile:
    """The vectors of one commit, which share a file."""

    def __init__(self) -> None:
        self._id = uuid.uuid4()
        self._parts = [_VERSION]
        self._size = len(_VERSION)

    @property
    def path(self) -> str:
        """Where the file lies below the table."""
        return f"deletion_vector_{self._id}.bin"

    @property
    def content(self) -> bytes:
        """The whole file; nothing but its first byte when it holds no vector."""
        return b"".join(self._parts)

    def __bool__(self) -> bool:
        return len(self._parts) > 1

    def add(self, positions: Positions) -> dict[str, Any]:
        """Adds a vector of these positions, which are distinct. Returns its descriptor."""
        bitmap = BitMap64(positions.astype(np.uint64))
        bitmap.run_optimize()
        data = _MAGIC + bitmap.serialize()
        descriptor = {
            "storageType": "u",
            "pathOrInlineDv": _encoded(self._id),
            "offset": self._size,
            "sizeInBytes": len(data),
            "cardinality": len(positions),
        }
        self._parts += [struct.pack(">i", len(data)), data, struct.pack(">I", zlib.crc32(data))]
        self._size += len(data) + _FRAME
        return descriptor


def removed_rows(before: Positions, new: Positions, *, rows: int) -> Positions:
    """The removed rows of a file of so many `rows` of which `before` are removed, once `new` ones are as well. Raises
    UnsupportedChange when the file cannot have those.
    """
    removed = np.sort(np.concatenate([before, new]))
    if len(removed) and (int(removed[-1]) >= rows or bool((removed[1:] == removed[:-1]).any())):
        raise UnsupportedChange("a data file of the lake table has other rows than its log says")
    return removed


def read_vector(descriptor: Mapping[str, Any], read: Callable[[str, int, int], bytes]) -> Positions:
    """The positions of a vector, ascending. `read` gives bytes of a file below the table: (path, start,
    length). Raises UnsupportedChange when they are not what the descriptor says. The file lies below the
    table: LiveFile takes no other.
    """
    size = descriptor["sizeInBytes"]
    if descriptor["storageType"] == "i":
        data = _inline(descriptor["pathOrInlineDv"])[:size]
    else:
        framed = read(vector_file(descriptor), descriptor.get("offset", 1), size + _FRAME)
        data = framed[4:-4]
        if framed[:4] != struct.pack(">i", size) or framed[-4:] != struct.pack(">I", zlib.crc32(data)):
            raise _damaged()
    if len(data) != size or data[:4] != _MAGIC:
        raise _damaged()
    try:
        positions = np.asarray(BitMap64.deserialize(data[4:]).to_array()).astype(np.int64)
    except (ValueError, IndexError) as error:
        raise _damaged() from error
    if len(positions) != descriptor["cardinality"]:
        raise _damaged()
    return positions


def among(positions: Positions, others: Positions) -> Claims:
    """Which of `positions` are among `others`, which ascend."""
    if not len(others):
        return np.zeros(len(positions), dtype=bool)
    places = np.minimum(np.searchsorted(others, positions), len(others) - 1)
    found: Claims = others[places] == positions
    return found


def _inline(text: str) -> bytes:
    try:
        return base64.b85decode(text.translate(str.maketrans(Z85, B85)))
    except ValueError as error:
        raise _damaged() from error


def _damaged() -> UnsupportedChange:
    return UnsupportedChange(
        "a deletion vector of the lake table is damaged",
        hint="restore the file, or remove the table's folder and resync the table",
    )


def _encoded(identifier: uuid.UUID) -> str:
    return base64.b85encode(identifier.bytes).decode().translate(str.maketrans(B85, Z85))
