"""Sizes of transactions: exact, once per transaction, however the bytes are cut into batches."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluice.ingest.assemble.assembler import Assembler
from sluice.protocol.frames import join
from tests.support import wire

COLUMNS = [("id", 23, -1, True), ("note", 25, -1, False)]
SKIPPED_LSN = 50


def row(value: str, *, xid: int | None = None) -> bytes:
    return wire.insert(7, ["1", value], xid=xid)


def sizes(frames: list[bytes], cuts: set[int]) -> "Counter[tuple[int, int]]":
    assembler = Assembler(start_lsn=SKIPPED_LSN)
    found: Counter[tuple[int, int]] = Counter()
    part: list[bytes] = []
    for place, frame in enumerate(frames):
        part.append(frame)
        if place in cuts or place == len(frames) - 1:
            rows, nbytes = assembler.feed(join(part)).sizes
            found.update(zip(rows.tolist(), nbytes.tolist(), strict=True))
            part = []
    return found


def of(*rows: bytes) -> tuple[int, int]:
    return len(rows), sum(map(len, rows))


ORDINARY = [row("a"), row("b" * 50)]
LARGER = [row("c" * number) for number in range(5)]
STREAMED = [row("d" * 9, xid=30), row("e", xid=31)]
ABORTED = [row("f", xid=40)]
PREPARED = [row("g" * 3)]
FRAMES = [
    wire.relation(7, "t", COLUMNS),
    wire.begin(40, 9), row("before the start"), wire.commit(40, 45),
    wire.begin(100, 10), *ORDINARY, wire.commit(100, 110),
    wire.begin(120, 11), wire.truncate([7]), wire.commit(120, 130),
    wire.stream_start(30, first=True), wire.relation(7, "t", COLUMNS, xid=30), STREAMED[0], wire.stream_stop(),
    wire.stream_start(40, first=True), *ABORTED, wire.stream_stop(),
    wire.begin(140, 12), *LARGER, wire.commit(140, 150),
    wire.stream_abort(40, 40),
    wire.stream_start(30, first=False), STREAMED[1], wire.stream_stop(),
    wire.stream_commit(30, 160, 170),
    wire.begin_prepare(180, 190, 50, "g"), *PREPARED, wire.prepare(180, 190, 50, "g"),
    wire.commit_prepared(200, 210, 50, "g"),
]  # fmt: skip


@given(cuts=st.sets(st.integers(0, len(FRAMES) - 1)))
def test_each_transaction_counts_once_with_its_own_rows_and_bytes(cuts: set[int]) -> None:
    assert sizes(FRAMES, cuts) == Counter([of(*ORDINARY), of(*LARGER), of(*STREAMED), of(*PREPARED)])
