"""The columnar walk gives exactly what a row-by-row decoder gives, and refuses every other row."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.protocol import tuples
from sluice.protocol.frames import FrameTable, join
from sluice.protocol.tuples import FieldVector, RowColumns, walk_rows
from tests.support import pgoutput_bytes as wire
from tests.support.extent import FULL
from tests.support.pgoutput_bytes import UNCHANGED, Binary
from tests.support.reference_decoder import Malformed, ReferenceRow, Value, decode_row

OID = 16384


def walk(messages: Sequence[bytes], column_count: int, *, in_stream: bool = False) -> RowColumns:
    table = join([wire.xlogdata(message) for message in messages])
    return walk_rows(table, np.arange(len(messages)), column_count, in_stream=in_stream)


def values(table: FrameTable, fields: tuple[FieldVector, ...], row: int) -> tuple[Value, ...]:
    found = []
    for vector in fields:
        kind, start, length = chr(vector.kind[row]), int(vector.start[row]), int(vector.length[row])
        assert 0 <= start <= len(table.raw) - 16
        assert kind in "tb" or length == 0
        found.append((kind, table.raw[start : start + length]))
    return tuple(found)


def as_reference(columns: RowColumns, row: int, reference: ReferenceRow) -> ReferenceRow:
    """Row `row` in the reference decoder's form; what the walk does not give (oid, xid) is taken from `reference`."""
    op, old_kind = chr(columns.op[row]), chr(columns.old_kind[row]) if columns.old_kind[row] else ""
    new = values(columns.table, columns.new, row)
    old = values(columns.table, columns.old, row) if columns.old is not None else None
    if op == "D":
        assert all(value == ("n", b"") for value in new)
    if not old_kind:
        assert old is None or all(value == ("n", b"") for value in old)
    return ReferenceRow(
        op, reference.xid, reference.oid, old_kind, old if old_kind else None, None if op == "D" else new
    )


def assert_equals_reference(messages: Sequence[bytes], column_count: int, *, in_stream: bool) -> None:
    expected = [decode_row(message, column_count, in_stream=in_stream) for message in messages]
    columns = walk(messages, column_count, in_stream=in_stream)
    assert [as_reference(columns, row, reference) for row, reference in enumerate(expected)] == expected
    assert (columns.old is None) == (not any(row.old_kind for row in expected))
    for vector in [*columns.new, *(columns.old or ())]:
        assert [str(array.dtype) for array in (vector.kind, vector.start, vector.length)] == ["uint8", "int64", "int32"]
        assert len(vector.kind) == len(vector.start) == len(vector.length) == len(columns) == len(messages)


FIELDS: st.SearchStrategy[wire.Field] = st.one_of(
    st.binary(max_size=20), st.none(), st.just(UNCHANGED), st.binary(max_size=9).map(Binary)
)


@st.composite
def row_messages(draw: st.DrawFn) -> tuple[list[bytes], int, bool]:
    column_count, in_stream = draw(st.integers(0, 6)), draw(st.booleans())
    fields = st.lists(FIELDS, min_size=column_count, max_size=column_count)
    markers = st.sampled_from([b"K", b"O"])
    oid, xid = st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1) if in_stream else st.none()
    row = st.one_of(
        st.builds(wire.insert, oid, fields, xid=xid),
        st.builds(wire.update, oid, fields, old=st.none() | fields, marker=markers, xid=xid),
        st.builds(wire.delete, oid, fields, marker=markers, xid=xid),
    )
    return draw(st.lists(row, max_size=30)), column_count, in_stream


@settings(max_examples=400 if FULL else 150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(row_messages().filter(lambda case: bool(case[0])), st.data())
def test_a_mutated_row_is_refused_exactly_when_the_row_by_row_decoder_refuses_it(
    case: tuple[list[bytes], int, bool], data: st.DataObject
) -> None:
    messages, column_count, in_stream = case
    chosen = data.draw(st.integers(0, len(messages) - 1), label="row")
    changed = bytearray(messages[chosen])
    for _ in range(data.draw(st.integers(1, 3), label="changes")):
        at = data.draw(st.integers(0, len(changed) - 1), label="position")
        changed[at] = data.draw(
            st.sampled_from(b"\0\1\2\x7f\x80\xfe\xffntubNKOIUDB") | st.integers(0, 255), label="byte"
        )
    tail = data.draw(st.sampled_from([0, 0, 1, 2, 5]), label="cut")
    messages[chosen] = bytes(changed[: max(1, len(changed) - tail)])
    try:
        decode_row(messages[chosen], column_count, in_stream=in_stream)
    except Malformed:
        with pytest.raises(DecodeError):
            walk(messages, column_count, in_stream=in_stream)
    else:
        assert_equals_reference(messages, column_count, in_stream=in_stream)


@pytest.mark.parametrize("block_rows", [1, 3, 8192])
def test_rows_keep_their_order_across_blocks(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "_BLOCK_ROWS", block_rows)
    rows: list[bytes] = []
    for n in range(20):
        name = b"%d" % n
        rows += [
            wire.insert(OID, [name, b"x" * n]),
            wire.update(OID, [name, UNCHANGED], old=[name, None]),
            wire.delete(OID, [name, name], marker=b"O"),
        ]
    assert_equals_reference(rows, 2, in_stream=False)


def test_chosen_rows_are_walked_in_the_order_asked_for() -> None:
    messages = [wire.keepalive(5)] + [wire.xlogdata(wire.insert(OID, [b"%d" % n])) for n in range(4)]
    columns = walk_rows(join(messages), np.array([3, 1]), 1, in_stream=False)
    assert [values(columns.table, columns.new, row) for row in range(2)] == [(("t", b"2"),), (("t", b"0"),)]


@pytest.mark.parametrize("column_count", [255, 256, 257, 1600, 1664])
def test_wide_rows_are_walked_whole(column_count: int) -> None:
    row: list[wire.Field] = [(b"v", None, UNCHANGED)[n % 3] for n in range(column_count)]
    assert_equals_reference(
        [wire.insert(OID, row), wire.delete(OID, row), wire.update(OID, row, old=row)], column_count, in_stream=False
    )


def test_a_value_with_a_three_byte_length_is_one_value() -> None:
    assert_equals_reference(
        [wire.insert(OID, [b"x" * 0x01_02_03, b"y"]), wire.insert(OID, [b"", b"z"])], 2, in_stream=False
    )


GOOD = wire.insert(OID, [b"1", b"abc", None])
REFUSED: dict[str, bytes] = {
    "column count 0": wire.insert(OID, []),
    "one column less": wire.insert(OID, [b"1", b"abc"]),
    "one column more": wire.insert(OID, [b"1", b"abc", None, None]),
    "kind x": GOOD.replace(b"t\0\0\0\3", b"x\0\0\0\3"),
    "length -1": GOOD.replace(b"\0\0\0\3abc", b"\xff\xff\xff\xffabc"),
    "length 2**31-1": GOOD.replace(b"\0\0\0\3abc", b"\x7f\xff\xff\xffabc"),
    "length one past the end": GOOD.replace(b"\0\0\0\3abc", b"\0\0\0\5abc"),
    "length that reaches into the next message": GOOD.replace(b"\0\0\0\3abc", b"\0\0\0\x20abc"),
    "trailing byte": GOOD + b"n",
    "marker missing": GOOD.replace(b"N\0\3", b"\0\3"),
    "marker K on an Insert": GOOD.replace(b"N\0\3", b"K\0\3"),
    "marker N on a Delete": b"D" + GOOD[1:],
    "marker N on a Delete that ends there": b"D" + wire.u32(OID) + b"N",
    "update without its new tuple": wire.delete(OID, [b"1", b"2", None]).replace(b"D", b"U", 1),
    "update with two old tuples": wire.update(OID, [b"1", b"2", None], old=[b"1", None, None]).replace(
        b"N\0\3", b"K\0\3"
    ),
    "old tuple of another width": wire.update(OID, [b"1", b"2", None], old=[b"1", None]),
    "new tuple narrower than the old one": wire.update(OID, [b"1", b"2"], old=[b"1", None, None]),
    "a control message": wire.begin(1, 2, 3),
    "a stream prefix outside a stream": wire.insert(OID, [b"1", b"abc", None], xid=5),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_row_that_the_specification_does_not_allow_is_refused_by_name(case: str) -> None:
    table = join([wire.xlogdata(message, lsn=0x10 + n) for n, message in enumerate([GOOD, REFUSED[case], GOOD, GOOD])])
    with pytest.raises(DecodeError, match=f"message '{REFUSED[case][:1].decode()}' at LSN 0/11"):
        walk_rows(table, np.arange(4), 3, in_stream=False)


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        wire.update(OID, [b"1", UNCHANGED, None], old=[b"0", None, None]),
        wire.delete(OID, [b"1", None, None]),
        wire.insert(OID, [None] * 3),
    ],
)
def test_every_truncation_of_a_row_is_refused(message: bytes) -> None:
    for length in range(1, len(message)):
        for others in ([], [GOOD]):
            with pytest.raises(DecodeError):
                walk([*others, message[:length], *others], 3)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (GOOD[:5], "ends inside its header"),
        (GOOD[:-2], "ends inside column 2"),
        (GOOD[:9], "is too short for its columns"),
        (REFUSED["update without its new tuple"], "ends behind its old tuple"),
        (REFUSED["update without its new tuple"] + b"K", "has no new tuple behind its old one"),
        (REFUSED["one column more"], "does not have the relation's 3 columns"),
        (REFUSED["trailing byte"], "goes on behind its last field"),
    ],
)
def test_an_error_says_what_is_wrong(message: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        walk([message], 3)


def test_a_row_outside_a_stream_is_refused_where_a_stream_prefix_is_due() -> None:
    with pytest.raises(DecodeError):
        walk([GOOD], 3, in_stream=True)


def test_a_keepalive_is_not_a_row() -> None:
    with pytest.raises(DecodeError, match="keepalive at LSN 0/5"):
        walk_rows(join([wire.keepalive(5), wire.xlogdata(GOOD)]), np.arange(2), 3, in_stream=False)


@pytest.mark.parametrize("column_count", [-1, 1665, 65535])
def test_more_columns_than_a_tuple_can_have_are_refused(column_count: int) -> None:
    with pytest.raises(DecodeError, match="columns"):
        walk([GOOD], column_count)


def test_the_last_bad_row_of_many_blocks_is_the_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "_BLOCK_ROWS", 2)
    messages = [wire.xlogdata(GOOD, lsn=n + 1) for n in range(6)] + [wire.xlogdata(REFUSED["kind x"], lsn=0xBAD)]
    with pytest.raises(DecodeError, match=r"at LSN 0/BAD .* column 2"):
        walk_rows(join(messages), np.arange(7), 3, in_stream=False)


def test_an_error_never_shows_a_value() -> None:
    with pytest.raises(DecodeError) as caught:
        walk([wire.insert(OID, [b"secret"]) + b"secret"], 1)
    assert "secret" not in str(caught.value)
