"""Where the records of a server's write-ahead log end, and which of them commit a transaction, from its bytes. Pure.

Invariant: what is said of a position follows from pages that state their own position and from records whose check
sums agree; everything else is left out. (PostgreSQL: WAL Internals; src/include/access/xlog_internal.h and
xlogrecord.h have the same form in 14 to 19.)
"""

import struct
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

RECORD_BYTES = 24
"""Of the head of a record: length, transaction, previous record, kind, resource manager, check sum."""
_SHORT_HEAD, _LONG_HEAD = 24, 40
_CONTINUES, _LONG = 0x1, 0x2
"""Flags of a page: it begins with the rest of a record, and it is the first one of a file."""
_XLOG, _TRANSACTIONS = 0, 1
"""Resource managers."""
_SWITCH, _COMMIT, _COMMIT_PREPARED, _KIND = 0x40, 0x00, 0x30, 0x70
_LONGEST = 1 << 30
_CASTAGNOLI = 0x82F63B78


@dataclass(frozen=True, slots=True)
class Committed:
    """A record that commits a transaction: `xid`, 0 for one that was prepared."""

    xid: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """What a part of the log says. Every record that ends from `begin` to `through` is in `ends`, by the position at
    which it ends: the transaction that it commits, None for any other record. That of `begin` is not known.
    """

    begin: int = 0
    through: int = 0
    ends: Mapping[int, Committed | None] = field(default_factory=dict)

    def says(self, lsn: int) -> bool:
        """Whether it is known what ends at `lsn`."""
        return self.begin < lsn <= self.through


@dataclass(frozen=True, slots=True)
class _Page:
    lsn: int
    head: int
    flags: int
    rest: int
    """Bytes of a record that began on an earlier page, from this one on."""


def read_part(data: bytes, *, begin: int, page_bytes: int) -> LogPart:
    """What the log says from `begin` on, the position of a page."""
    order = "<" if data[8:16] == begin.to_bytes(8, "little") else ">"
    pages, content = [], bytearray()
    starts = [0]
    for at in range(0, len(data), page_bytes):
        page = _page(data, at, lsn=begin + at, order=order)
        if page is None:
            break
        pages.append(page)
        content += data[at + page.head : at + page_bytes]
        starts.append(len(content))
    first = _first_record(pages, starts)
    return LogPart() if first is None else _records(bytes(content), pages, starts, first=first, order=order)


def ended(lsn: int, *, page_bytes: int, file_bytes: int) -> int:
    """Where the record ends behind which the position `lsn` is. The server inserts behind the head of a page, and the
    record before it ends with the page before.
    """
    head = _LONG_HEAD if lsn % file_bytes == _LONG_HEAD else _SHORT_HEAD
    return lsn - head if lsn % page_bytes == head else lsn


def _page(data: bytes, at: int, *, lsn: int, order: str) -> _Page | None:
    if len(data) - at < _LONG_HEAD:
        return None
    magic, flags, _, address, rest = struct.unpack_from(f"{order}HHIQI", data, at)
    if not magic or address != lsn:
        return None
    return _Page(lsn, _LONG_HEAD if flags & _LONG else _SHORT_HEAD, flags, rest if flags & _CONTINUES else 0)


def _aligned(length: int) -> int:
    return -(-length // 8) * 8


def _first_record(pages: list[_Page], starts: list[int]) -> int | None:
    for page, start, end in zip(pages, starts, starts[1:], strict=False):
        if _aligned(page.rest) <= end - start:
            return start + _aligned(page.rest)
    return None


def _records(content: bytes, pages: list[_Page], starts: list[int], *, first: int, order: str) -> LogPart:
    def position(end: int) -> int:
        number = max(0, bisect_left(starts, end) - 1)
        return pages[number].lsn + pages[number].head + end - starts[number] if end else pages[0].lsn

    begin, at = position(first), first
    ends: dict[int, Committed | None] = {}
    through = begin
    while (end := _end_of_record(content, at, order=order)) is not None and _is_continued(pages, starts, at, end):
        _, xid, _, kind, manager = struct.unpack_from(f"{order}IIQBB", content, at)
        at = end
        if manager == _XLOG and kind & 0xF0 == _SWITCH:
            number = next((n for n, page in enumerate(pages) if starts[n] >= end and page.flags & _LONG), None)
            if number is None:
                break
            at, through = starts[number], pages[number].lsn
            ends[through] = None
            continue
        through = position(end)
        commits = manager == _TRANSACTIONS and kind & _KIND in (_COMMIT, _COMMIT_PREPARED)
        ends[through] = Committed(0 if kind & _KIND == _COMMIT_PREPARED else xid) if commits else None
    return LogPart(begin, through, ends)


def _end_of_record(content: bytes, at: int, *, order: str) -> int | None:
    """Where the record ends that begins at `at`; None unless it is there as a whole, as it was written."""
    if len(content) - at < RECORD_BYTES:
        return None
    length, check_sum = (struct.unpack_from(f"{order}I", content, at + offset)[0] for offset in (0, 20))
    if not RECORD_BYTES <= length <= _LONGEST or _aligned(length) > len(content) - at:
        return None
    found = _crc(content[at + RECORD_BYTES : at + length] + content[at : at + 20])
    return at + _aligned(length) if found == check_sum else None


def _is_continued(pages: list[_Page], starts: list[int], at: int, end: int) -> bool:
    """Whether the pages on which a record goes on say so: those of one that a crash cut off do not."""
    return all(bool(page.flags & _CONTINUES) for page, start in zip(pages, starts, strict=False) if at < start < end)


def _crc(data: bytes) -> int:
    """CRC-32C, as the server computes it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@lru_cache(1)
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
