"""Memory for received values so large that each copy of them counts, and giving back what has been read.

Invariant: nothing that anybody may still read is given back: who asks for it here is the only one
who has the bytes. Whole pages only; where the system cannot take them back, they stay, and nothing
else changes. (Linux: madvise(2), MADV_DONTNEED; elsewhere it does not promise to free anything.)
"""

import ctypes
import mmap
import sys
from collections.abc import Sequence

import numpy as np

LARGE_BYTES = 16 << 20
"""From here on a value is treated so."""
_PIECE_BYTES = 4 << 20
_FREES = sys.platform == "linux"

Raw = bytes | mmap.mmap
"""The bytes of a buffer: those of usual size are plain, those with a large value are private memory."""


def private_memory(size: int) -> mmap.mmap:
    """`size` zero bytes that take memory only where they are written, and give it back as soon as
    nothing refers to them.
    """
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def moved(chunks: Sequence[bytes | memoryview], *, emptied: bool) -> mmap.mmap:
    """The chunks one behind the other. With `emptied` large memoryviews lose their content on the
    way, piece by piece: it is never there twice.
    """
    memory = private_memory(sum(map(len, chunks)))
    at = 0
    for chunk in chunks:
        gone = emptied and isinstance(chunk, memoryview) and len(chunk) >= LARGE_BYTES
        for first in range(0, len(chunk), _PIECE_BYTES):
            piece = memoryview(chunk)[first : first + _PIECE_BYTES]
            memory[at : at + len(piece)] = piece
            at += len(piece)
            if gone:
                _discard(piece)
    return memory


def give_back(memory: Raw, start: int, end: int) -> None:
    """The content of private memory between the places is gone, as far as it fills pages: zeros are
    read there from now on. Plain bytes stay.
    """
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if _FREES and first < last and isinstance(memory, mmap.mmap):
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)


def _discard(piece: memoryview) -> None:
    """As `give_back`, of memory that a library handed over."""
    address = int(np.frombuffer(piece, np.uint8).ctypes.data)
    first, last = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + len(piece)) // mmap.PAGESIZE * mmap.PAGESIZE
    if _FREES and first < last:
        _madvise(first, last - first, mmap.MADV_DONTNEED)


def _libc_madvise() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function


_madvise = _libc_madvise()
