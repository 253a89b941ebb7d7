"""PostgreSQL's `hashtextextended` over Arrow strings, many at a time.

Owns that every hash is the one that a little-endian server computes for the same bytes under a
collation that compares bytes (`COLLATE "C"`): hash partitioning stands on that function, so that no
release changes it. (PostgreSQL: src/common/hashfn.c, hash_bytes_extended.)
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
_Words = npt.NDArray[np.uint32]

_BLOCK_BYTES = 12
_ROWS_AT_ONCE = 16_384
"""Whose words stay in the processor's cache from one step to the next."""
_FIRST = np.uint32(0x9E3779B9 + 3923095)
_KEPT = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint32)
"""By the number of bytes that count in a little-endian word."""


def hash_texts(texts: pa.Array, seed: int) -> Hashes:
    """One hash for each of `texts` (string or binary, offsets of 32 or 64 bits); of a null it is the
    hash of nothing.
    """
    texts = texts.cast(pa.large_binary())
    count = len(texts)
    buffers = texts.buffers()
    offsets = np.frombuffer(buffers[1], np.int64)[texts.offset : texts.offset + count + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if count else (0, 0)
    data = bytes(memoryview(buffers[2])[first:last]) if buffers[2] is not None else b""
    raw = data + bytes(_BLOCK_BYTES)
    words: _Words = np.ndarray((len(raw) - 3,), "<u4", raw, strides=(1,))
    hashes = np.empty(count, np.uint64)
    with np.errstate(over="ignore"):
        for begin in range(0, count, _ROWS_AT_ONCE):
            part = offsets[begin : begin + _ROWS_AT_ONCE + 1] - first
            hashes[begin : begin + _ROWS_AT_ONCE] = _hash(words, part[:-1], np.diff(part), seed)
    return hashes


def _hash(words: _Words, start: Any, length: Any, seed: int) -> Hashes:
    """The longest first, so that those with another block are always a prefix."""
    order = np.argsort(-length, kind="stable")
    at, left = start[order], length[order]
    a = _FIRST + left.astype(np.uint32)
    b, c = a.copy(), a.copy()
    if seed:
        a += np.uint32(seed >> 32 & 0xFFFFFFFF)
        b += np.uint32(seed & 0xFFFFFFFF)
        _mix(a, b, c)
    left = left.copy()
    active = int(np.count_nonzero(left >= _BLOCK_BYTES))
    while active:
        here = at[:active]
        x, y, z = a[:active], b[:active], c[:active]
        x += words[here]
        y += words[here + 4]
        z += words[here + 8]
        _mix(x, y, z)
        here += _BLOCK_BYTES
        left[:active] -= _BLOCK_BYTES
        active = int(np.count_nonzero(left[:active] >= _BLOCK_BYTES))
    a += words[at] & _KEPT[np.minimum(left, 4)]
    # The words behind the last byte belong to others, or to nobody.
    b += words[np.minimum(at + 4, len(words) - 1)] & _KEPT[np.clip(left - 4, 0, 4)]
    c += (words[np.minimum(at + 8, len(words) - 1)] & _KEPT[np.clip(left - 8, 0, 3)]) << np.uint32(8)
    _final(a, b, c)
    hashes = np.empty(len(order), np.uint64)
    hashes[order] = b.astype(np.uint64) << np.uint64(32) | c
    return hashes


def _rotated(word: _Words, bits: int) -> _Words:
    turned: _Words = word << np.uint32(bits) | word >> np.uint32(32 - bits)
    return turned


def _mix(a: _Words, b: _Words, c: _Words) -> None:
    """In place."""
    for x, y, z, bits in ((a, b, c, 4), (b, c, a, 6), (c, a, b, 8), (a, b, c, 16), (b, c, a, 19), (c, a, b, 4)):
        np.subtract(x, z, out=x)
        np.bitwise_xor(x, _rotated(z, bits), out=x)
        np.add(z, y, out=z)


def _final(a: _Words, b: _Words, c: _Words) -> None:
    """In place."""
    for x, y, bits in ((c, b, 14), (a, c, 11), (b, a, 25), (c, b, 16), (a, c, 4), (b, a, 14), (c, b, 24)):
        np.bitwise_xor(x, y, out=x)
        np.subtract(x, _rotated(y, bits), out=x)
