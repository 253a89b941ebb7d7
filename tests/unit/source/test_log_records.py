"""Records of a log, read from pages as a server writes them: where each ends, and what is left open."""

import struct
from collections.abc import Iterator

import pytest

from sluice.source.log_records import Committed, ended, read_part

PAGE, FILE = 8192, 16 << 20
BEGIN = 3 * FILE - 4 * PAGE
"""Of the pages that are read: the fifth one begins a file."""
_XLOG, _TRANSACTIONS, _HEAP = 0, 1, 10


def crc(data: bytes) -> int:
    """Bit by bit, as the polynomial says."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


class Log:
    """What a server writes from `BEGIN` on, `first` bytes of an earlier record first."""

    def __init__(self, *, order: str = "<", first: int = 0) -> None:
        self._order = order
        self._pages: list[bytearray] = []
        self.lsn = BEGIN
        self.ends: list[int] = []
        """Of the records, where each ends."""
        self._put(bytes(first), goes_on=True)
        self._align()

    def record(self, *, xid: int = 0, kind: int = 0, manager: int = _HEAP, body: int = 40) -> int:
        """Writes one and returns where it ends."""
        rest = bytes(byte % 251 for byte in range(body))
        head = struct.pack(f"{self._order}IIQBBH", 24 + body, xid, 7, kind, manager, 0)
        self._put(head + struct.pack(f"{self._order}I", crc(rest + head)) + rest, goes_on=False)
        self._align()
        self.ends.append(self.lsn)
        return self.lsn

    def switch(self) -> int:
        """The rest of the file stays empty."""
        self.record(kind=0x40, manager=_XLOG, body=0)
        while self.lsn % FILE:
            self._put(bytes(8), goes_on=False)
        self.ends[-1] = self.lsn
        return self.lsn

    @property
    def data(self) -> bytes:
        return b"".join(self._pages)

    def _align(self) -> None:
        self._put(bytes(-self.lsn % 8), goes_on=True)

    def _put(self, data: bytes, *, goes_on: bool) -> None:
        while data:
            if self.lsn % PAGE == 0:
                is_long = self.lsn % FILE == 0
                flags = (2 if is_long else 0) | (1 if goes_on else 0)
                head = struct.pack(
                    f"{self._order}HHIQI4x", 0xD118, flags, 1, self.lsn, len(data) if goes_on else 0
                ) + bytes(16 if is_long else 0)
                self._pages.append(bytearray(head))
                self.lsn += len(head)
            part = data[: PAGE - self.lsn % PAGE]
            self._pages[-1] += part
            self.lsn += len(part)
            data, goes_on = data[len(part) :], True


def written(log: Log) -> Iterator[int]:
    """Records of all lengths, over several pages and into the next file."""
    for number in range(700):
        yield log.record(xid=number, body=number * 37 % 400)
    yield log.record(xid=9, manager=_TRANSACTIONS, body=3 * PAGE)
    yield log.record(xid=10, manager=_TRANSACTIONS, kind=0x80, body=30)
    yield log.record(xid=11, manager=_TRANSACTIONS, kind=0x30)


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize("first", [0, 100, PAGE - 24, PAGE, 2 * PAGE])
def test_every_record_ends_where_the_server_ended_it_and_nothing_else_does(order: str, first: int) -> None:
    log = Log(order=order, first=first)
    *others, giant, commit, prepared = written(log)
    part = read_part(log.data, begin=BEGIN, page_bytes=PAGE)
    assert (sorted(part.ends), part.through) == (log.ends, prepared)
    assert {lsn: found for lsn, found in part.ends.items() if found} == {
        giant: Committed(9),
        commit: Committed(10),
        prepared: Committed(0),
    }
    assert all(part.says(lsn) for lsn in others)
    assert not part.says(part.begin)
    assert not part.says(prepared + 8)


def test_behind_the_end_of_a_file_that_was_switched_the_next_file_goes_on() -> None:
    log = Log()
    log.record()
    switched, after = log.switch(), log.record()
    part = read_part(log.data, begin=BEGIN, page_bytes=PAGE)
    assert switched % FILE == 0
    assert list(part.ends)[-2:] == [switched, after]


def test_nothing_is_said_behind_a_byte_that_is_not_as_it_was_written() -> None:
    log = Log()
    list(written(log))
    data = bytearray(log.data)
    data[PAGE + 1000] ^= 1
    part = read_part(bytes(data), begin=BEGIN, page_bytes=PAGE)
    assert list(part.ends) == [lsn for lsn in log.ends if lsn <= part.through]
    assert part.through < BEGIN + PAGE + 1000


def test_nothing_is_said_behind_a_record_that_a_crash_cut_off() -> None:
    """What the server writes after its recovery begins with the next page."""
    log = Log()
    whole = log.record()
    log.record(body=PAGE)
    data = bytearray(log.data)
    data[PAGE + 2] = 0x8
    part = read_part(bytes(data), begin=BEGIN, page_bytes=PAGE)
    assert (part.through, list(part.ends)) == (whole, [whole])


@pytest.mark.parametrize("data", [b"", bytes(100), bytes(3 * PAGE), b"x" * 3 * PAGE])
def test_what_is_no_log_says_nothing(data: bytes) -> None:
    assert not read_part(data, begin=BEGIN, page_bytes=PAGE).ends


def test_a_part_that_is_cut_anywhere_says_only_what_it_has() -> None:
    log = Log()
    list(written(log))
    for cut in range(0, len(log.data), 997):
        part = read_part(log.data[:cut], begin=BEGIN, page_bytes=PAGE)
        assert list(part.ends) == [lsn for lsn in log.ends if lsn <= part.through]


def test_a_position_behind_the_head_of_a_page_is_the_end_of_the_page_before() -> None:
    form = {"page_bytes": PAGE, "file_bytes": FILE}
    assert ended(BEGIN + 24, **form) == BEGIN
    assert ended(3 * FILE + 40, **form) == 3 * FILE
    assert [ended(lsn, **form) for lsn in (BEGIN, BEGIN + 32, BEGIN + 40)] == [BEGIN, BEGIN + 32, BEGIN + 40]
