"""Deletion vectors: what is written is read back, and bytes that are not what the log says are refused."""

import base64
import struct
import zlib
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from pyroaring import BitMap64

from sluice.errors import UnsupportedChange
from sluice_spark.lake.direct.vectors import Positions, VectorFile, read_vector
from sluice_spark.lake.foreign_commits import B85, Z85, vector_file

POSITIONS = st.sets(st.integers(0, 2**33) | st.integers(0, 5000), min_size=1, max_size=50)
MAGIC = struct.pack("<i", 1681511377)


def _positions(values: set[int]) -> Positions:
    return np.array(sorted(values), dtype=np.int64)


def _reader(files: dict[str, bytes]) -> Callable[[str, int, int], bytes]:
    return lambda path, start, length: files[path][start : start + length]


def _no_file(path: str, start: int, length: int) -> bytes:
    raise AssertionError(f"{path} is no file of the table")


def _inline(positions: Positions, *, data: bytes | None = None) -> dict[str, Any]:
    data = MAGIC + BitMap64(positions.astype(np.uint64)).serialize() if data is None else data
    padded = data + b"\0" * (-len(data) % 4)
    text = base64.b85encode(padded).decode().translate(str.maketrans(B85, Z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(positions)}


@settings(deadline=None)
@given(st.lists(POSITIONS, min_size=1, max_size=4))
def test_vectors_of_one_file_are_read_back(vectors: list[set[int]]) -> None:
    file = VectorFile()
    assert not file
    descriptors = [file.add(_positions(values)) for values in vectors]
    assert file
    assert {vector_file(descriptor) for descriptor in descriptors} == {file.path}
    for values, descriptor in zip(vectors, descriptors, strict=True):
        assert read_vector(descriptor, _reader({file.path: file.content})).tolist() == sorted(values)


@settings(deadline=None)
@given(POSITIONS)
def test_the_inline_form_of_other_writers_is_read(values: set[int]) -> None:
    assert read_vector(_inline(_positions(values)), _no_file).tolist() == sorted(values)


def test_the_bytes_are_those_of_the_protocol() -> None:
    """(Delta protocol: Deletion Vector File Storage Format.)"""
    file = VectorFile()
    descriptor = file.add(_positions({0, 7}))
    data = file.content[1 + 4 : -4]
    assert file.content[:1] == b"\x01"
    assert file.content[1:5] == struct.pack(">i", len(data))
    assert file.content[-4:] == struct.pack(">I", zlib.crc32(data))
    assert (descriptor["offset"], descriptor["sizeInBytes"], descriptor["cardinality"]) == (1, len(data), 2)
    assert data[:4] == MAGIC
    assert data[4:16] == struct.pack("<qi", 1, 0)


@settings(deadline=None)
@given(values=POSITIONS, data=st.data())
def test_a_changed_byte_of_a_file_is_refused(values: set[int], data: st.DataObject) -> None:
    file = VectorFile()
    descriptor = file.add(_positions(values))
    place = data.draw(st.integers(1, len(file.content) - 1))
    changed = bytearray(file.content)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnsupportedChange, match="deletion vector"):
        read_vector(descriptor, _reader({file.path: bytes(changed)}))


@settings(deadline=None)
@given(values=POSITIONS, data=st.data())
def test_inline_bytes_that_end_early_are_refused(values: set[int], data: st.DataObject) -> None:
    found = _inline(_positions(values))
    found["pathOrInlineDv"] = found["pathOrInlineDv"][: data.draw(st.integers(0, len(found["pathOrInlineDv"]) - 6))]
    with pytest.raises(UnsupportedChange, match="deletion vector"):
        read_vector(found, _no_file)


@pytest.mark.parametrize(
    "damaged",
    [
        *({"pathOrInlineDv": text} for text in ("~~~~~", "\u00e9" * 5, "ab cd", "")),
        *(_inline(_positions({1}), data=data) for data in (MAGIC, MAGIC + b"\xff" * 40, b"\0\0\0\0" + b"\0" * 8)),
        {"cardinality": 2},
    ],
)
def test_inline_bytes_that_are_no_vector_of_so_many_rows_are_refused(damaged: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedChange, match="deletion vector"):
        read_vector(_inline(_positions({1})) | damaged, _no_file)
