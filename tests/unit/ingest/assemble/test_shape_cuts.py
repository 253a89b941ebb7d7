"""A batch is cut before each transaction from which on other columns may identify the rows."""

import pytest

from sluice.ingest.assemble.shape_cuts import ShapeCuts
from sluice.protocol.frames import join
from tests.support import pgoutput_bytes as wire

BEGIN, COMMIT = wire.begin(0x300, 0, 7), wire.commit(0x300, 0x320, 0)
ROW = wire.insert(16400, [b"1"])
START, STOP, STREAMED = wire.stream_start(9), wire.stream_stop(), wire.stream_commit(9, 0x300, 0x320, 0)
PREPARED, PREPARE = wire.begin_prepare(0x300, 0x320, 0, 9, "g"), wire.prepare(0x300, 0x320, 0, 9, "g")
ENDED = wire.prepare(0x300, 0x340, 0, 9, "g", tag=b"K")


def announced(*flags: int, identity: bytes = b"d", oid: int = 16400, xid: int | None = None) -> bytes:
    columns = [(flag, name, 23, -1) for flag, name in zip(flags, "ab", strict=False)]
    return wire.relation(oid, "public", "t", columns, identity=identity, xid=xid)


FIRST, OTHER = announced(1, 0), announced(0, 1)
FIRST_OF_9, OTHER_OF_9 = announced(1, 0, xid=9), announced(0, 1, xid=9)
SAVEPOINT_UNDONE, UNDONE = wire.stream_abort(9, 10), wire.rollback_prepared(0x320, 0x360, 0, 0, 9, "g")


def parts(cuts: ShapeCuts, *messages: bytes) -> list[int]:
    return [len(part) for part in cuts.parts(join([wire.xlogdata(message) for message in messages]))]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((BEGIN, FIRST, ROW, COMMIT, BEGIN, ROW, COMMIT), [7]),
        ((BEGIN, FIRST, ROW, COMMIT, BEGIN, OTHER, ROW, COMMIT), [4, 4]),
        ((BEGIN, FIRST, ROW, COMMIT, BEGIN, OTHER, ROW, COMMIT, BEGIN, FIRST, ROW, COMMIT), [4, 4, 4]),
        ((BEGIN, FIRST, ROW, COMMIT, BEGIN, FIRST, ROW, COMMIT), [8]),
        ((BEGIN, FIRST, ROW, COMMIT, BEGIN, announced(1, 0, identity=b"i"), ROW, COMMIT), [4, 4]),
        ((BEGIN, FIRST, COMMIT, BEGIN, announced(0, 1, oid=16500), COMMIT), [6]),
        ((BEGIN, FIRST, COMMIT, BEGIN, announced(1), COMMIT), [3, 3]),
        ((BEGIN, FIRST, COMMIT, START, OTHER_OF_9, STOP, BEGIN, FIRST, COMMIT, STREAMED), [9, 1]),
        ((BEGIN, FIRST, COMMIT, START, OTHER_OF_9, STOP, wire.stream_abort(9, 9), BEGIN, OTHER), [7, 2]),
        ((BEGIN, FIRST, COMMIT, START, FIRST_OF_9, STOP, STREAMED), [7]),
        ((BEGIN, FIRST, COMMIT, PREPARED, OTHER, ROW, PREPARE, BEGIN, FIRST, COMMIT, ENDED), [7, 3, 1]),
        # What a prepared transaction announced holds for the rows of others behind it, before it has ended.
        ((BEGIN, FIRST, ROW, COMMIT, PREPARED, OTHER, ROW, PREPARE, BEGIN, ROW, COMMIT, ENDED), [8, 4]),
        ((BEGIN, FIRST, ROW, COMMIT, PREPARED, OTHER, ROW, PREPARE), [8, 0]),
        ((BEGIN, FIRST, COMMIT, ENDED, BEGIN, FIRST, COMMIT), [3, 1, 3]),
        # What a savepoint announced and took back was never in force.
        ((START, FIRST_OF_9, OTHER_OF_9, STOP, SAVEPOINT_UNDONE, STREAMED, BEGIN, OTHER, ROW, COMMIT), [6, 4]),
        # A relation that a transaction announced before it rolled back is not announced again.
        ((PREPARED, FIRST, PREPARE, UNDONE, BEGIN, ROW, COMMIT, BEGIN, OTHER, ROW, COMMIT), [7, 4]),
    ],
)
def test_a_part_begins_where_rows_of_another_shape_are_published(
    messages: tuple[bytes, ...], expected: list[int]
) -> None:
    assert parts(ShapeCuts(), *messages) == expected
    # In batches of one message, the cut is the first frame of the transaction's part in its batch.
    cuts = ShapeCuts()
    assert sum(len(parts(cuts, message)) - 1 for message in messages) >= len(expected) - 1


def test_a_transaction_that_began_in_an_earlier_batch_is_cut_from_what_came_before_it() -> None:
    cuts = ShapeCuts()
    assert parts(cuts, BEGIN, FIRST, ROW, COMMIT, BEGIN) == [5]
    assert parts(cuts, OTHER, ROW, COMMIT) == [0, 3]
    assert parts(cuts, BEGIN, ROW, COMMIT) == [3]
