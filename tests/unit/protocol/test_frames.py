"""Joining CopyData payloads: bounds and tags are right, and nothing too short, unknown or too large gets past."""

import numpy as np
import pytest

from sluice.errors import DecodeError
from sluice.protocol import limits
from sluice.protocol.frames import Offsets, control_positions, join, relation_oids, stream_xids
from tests.support import pgoutput_bytes as wire

KEEPALIVE = wire.keepalive(0x2_0000_0000, reply=1)
INSERT = wire.xlogdata(wire.insert(16384, [b"1", None]))
BEGIN = wire.xlogdata(wire.begin(0x10, 0, 7))


def rows(*indices: int) -> Offsets:
    return np.array(indices, np.int64)


def test_every_frame_keeps_its_bytes_and_its_tag() -> None:
    table = join([BEGIN, KEEPALIVE, memoryview(INSERT)])
    assert len(table) == 3
    assert [table.raw[a:b] for a, b in zip(table.start, table.end, strict=True)] == [BEGIN, KEEPALIVE, INSERT]
    assert bytes(table.outer) == b"wkw"
    assert bytes(table.tag) == b"B\0I"
    assert bytes(table.buffer) == table.raw


def test_the_tail_holds_a_tuple_of_nulls_and_bytes_to_read_past_both() -> None:
    table = join([INSERT])
    assert table.raw[table.nulls_at : table.nulls_at + 1664] == b"n" * 1664
    assert table.raw[int(table.end[-1]) : int(table.end[-1]) + 16] == bytes(16)
    assert table.raw[table.nulls_at + 1664 :].strip(b"\0") == b""
    assert len(table.raw) - table.nulls_at - 1664 >= 24


def test_only_row_messages_are_not_control_messages() -> None:
    every = [wire.xlogdata(wire.u8(tag)) for tag in range(256)]
    table = join([*every, KEEPALIVE])
    assert control_positions(table).tolist() == [tag for tag in range(256) if tag not in b"IUD"] + [256]


def test_a_keepalive_takes_no_tag_from_the_frame_behind_it() -> None:
    table = join([KEEPALIVE, wire.xlogdata(wire.begin(1, 0, 7), lsn=int.from_bytes(b"IIIIIIII", "big"))])
    assert control_positions(table).tolist() == [0, 1]
    assert bytes(table.tag) == b"\0B"


@pytest.mark.parametrize("bad", [b"", b"w", INSERT[:25], KEEPALIVE[:17], b"k", b"s" + bytes(40), b"\0" * 30])
@pytest.mark.parametrize("before", [[], [BEGIN]])
def test_a_frame_that_is_empty_short_or_unknown_is_refused(bad: bytes, before: list[bytes]) -> None:
    with pytest.raises(DecodeError, match=f"frame {len(before)} of {len(before) + 2}"):
        join([*before, bad, KEEPALIVE])


def test_a_message_larger_than_the_server_can_build_is_refused_before_it_is_read() -> None:
    with pytest.raises(DecodeError, match="larger than PostgreSQL can build"):
        join([bytes(limits.MAX_FRAME_BYTES + 1)])


def test_more_than_string_views_can_address_is_refused_before_it_is_read() -> None:
    chunk = memoryview(bytes(limits.MAX_FRAME_BYTES))
    with pytest.raises(DecodeError, match="too many for one batch"):
        join([chunk, chunk, chunk])


def test_relation_oids_and_xids_are_read_where_the_stream_puts_them() -> None:
    outside = join([INSERT, KEEPALIVE, wire.xlogdata(wire.delete(0xFFFF_FFFE, [b"1"]))])
    assert relation_oids(outside, rows(0, 2), in_stream=False).tolist() == [16384, 0xFFFF_FFFE]
    inside = join(
        [wire.xlogdata(wire.insert(16384, [b"1"], xid=0xFFFF_FFFF)), wire.xlogdata(wire.update(5, [b"1"], xid=3))]
    )
    assert relation_oids(inside, rows(0, 1), in_stream=True).tolist() == [16384, 5]
    assert stream_xids(inside, rows(0, 1)).tolist() == [0xFFFF_FFFF, 3]
    assert relation_oids(inside, rows(), in_stream=True).tolist() == []
    assert stream_xids(inside, rows()).tolist() == []


@pytest.mark.parametrize("length", range(1, 5))
def test_a_row_that_ends_before_its_relation_is_refused(length: int) -> None:
    table = join([INSERT, wire.xlogdata(wire.insert(16384, [])[:length], lsn=0xAB_0000_00CD)])
    with pytest.raises(DecodeError, match="message 'I' at LSN AB/CD ends inside its header"):
        relation_oids(table, rows(0, 1), in_stream=False)
    with pytest.raises(DecodeError, match="message 'I' at LSN AB/CD ends inside its header"):
        stream_xids(table, rows(0, 1))


def test_a_streamed_row_without_a_transaction_is_refused() -> None:
    with pytest.raises(DecodeError, match="no transaction id"):
        stream_xids(join([INSERT, wire.xlogdata(wire.insert(1, [], xid=0))]), rows(0, 1))
