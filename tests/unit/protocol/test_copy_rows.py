"""Rows of a COPY: values are the bytes sent, and a copy that was cut short is never whole."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.protocol.copy_rows import CopyRows
from tests.support.extent import FULL
from tests.support.pgoutput_bytes import COPY_HEADER, COPY_TRAILER, copy_row
from tests.support.recordings import rows_of

Row = Sequence[bytes | None]


def chunks_of(rows: Sequence[Row]) -> list[bytes]:
    """What the server sends: the header with the first row, one row a chunk, the trailer by itself."""
    chunks = [*map(copy_row, rows), COPY_TRAILER]
    return [COPY_HEADER + chunks[0], *chunks[1:]]


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, list[list[bytes | None]]]:
    width = draw(st.integers(0, 5))
    return width, draw(
        st.lists(st.lists(st.none() | st.binary(max_size=12), min_size=width, max_size=width), max_size=12)
    )


@settings(max_examples=200 if FULL else 80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.data())
def test_a_snapshot_gives_its_rows_however_it_is_cut_into_batches(
    table: tuple[int, list[list[bytes | None]]], data: st.DataObject
) -> None:
    width, expected = table
    chunks = chunks_of(expected)
    reader = CopyRows(width)
    found: list[list[bytes | None]] = []
    while chunks:
        size = len(chunks) - data.draw(st.integers(0, len(chunks)))
        found += rows_of(reader.feed(chunks[:size]))
        del chunks[:size]
    reader.close()
    assert found == expected


@given(tables(), st.data())
def test_payloads_that_were_joined_as_they_came_give_the_same_rows(
    table: tuple[int, list[list[bytes | None]]], data: st.DataObject
) -> None:
    width, expected = table
    payloads = chunks_of(expected)
    place = data.draw(st.integers(0, len(payloads)))
    pieces = [b"".join(payloads[:place]), *payloads[place : place + 1], b"".join(payloads[place + 1 :])]
    reader = CopyRows(width)
    assert rows_of(reader.feed(pieces, sizes=list(map(len, payloads)))) == expected
    reader.close()
    with pytest.raises(AssertionError):
        CopyRows(width).feed(pieces, sizes=[*map(len, payloads), 1])


@settings(max_examples=300 if FULL else 100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.data())
def test_a_mutated_snapshot_gives_rows_or_a_decode_error(
    table: tuple[int, list[list[bytes | None]]], data: st.DataObject
) -> None:
    width, rows = table
    chunks = chunks_of(rows)
    chosen = data.draw(st.integers(0, len(chunks) - 1))
    changed = bytearray(chunks[chosen])
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(
        st.sampled_from(b"\0\1\x7f\x80\xfe\xff") | st.integers(0, 255)
    )
    chunks[chosen] = bytes(changed[: len(changed) - data.draw(st.sampled_from([0, 0, 1, 4]))])
    reader = CopyRows(width)
    try:
        found = rows_of(reader.feed(chunks))
        reader.close()
    except DecodeError:
        return
    assert all(len(row) == width for row in found)


def test_a_header_extension_and_flags_that_may_be_ignored_are_skipped() -> None:
    header = COPY_HEADER[:11] + b"\0\0\xff\xff" + b"\0\0\0\3ext"
    assert rows_of(CopyRows(1).feed([memoryview(header + copy_row([b"a"])), copy_row([None])])) == [[b"a"], [None]]


def test_a_header_in_a_chunk_of_its_own_is_not_a_row() -> None:
    assert rows_of(CopyRows(1).feed([COPY_HEADER, copy_row([b"a"])])) == [[b"a"]]


@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        COPY_HEADER[:18],
        copy_row([b"a"]),
        b"X" + COPY_HEADER[1:] + copy_row([b"a"]),
        COPY_HEADER[:11] + b"\0\1\0\0" + bytes(4) + copy_row([b"a"]),
        COPY_HEADER[:15] + b"\0\0\0\xff" + copy_row([b"a"]),
        COPY_HEADER[:15] + b"\xff\xff\xff\xff" + copy_row([b"a"]),
    ],
)
def test_a_missing_or_unknown_header_is_refused(chunk: bytes) -> None:
    with pytest.raises(DecodeError, match="copy"):
        CopyRows(1).feed([chunk, copy_row([b"a"])])


GOOD = copy_row([b"1", b"abc", None])
REFUSED = {
    "empty chunk": b"",
    "half a field count": b"\0",
    "too few columns": copy_row([b"1", b"abc"]),
    "too many columns": copy_row([b"1", b"abc", None, None]),
    "no columns": copy_row([]),
    "length -2": GOOD.replace(b"\0\0\0\3abc", b"\xff\xff\xff\xfeabc"),
    "length -2**31": GOOD.replace(b"\0\0\0\3abc", b"\x80\0\0\0abc"),
    "length 2**31-1": GOOD.replace(b"\0\0\0\3abc", b"\x7f\xff\xff\xffabc"),
    "length past the end": GOOD.replace(b"\0\0\0\3abc", b"\0\0\0\x08abc"),
    "length one short": GOOD.replace(b"\0\0\0\3abc", b"\0\0\0\2abc"),
    "trailing byte": GOOD + b"\0",
    "two rows in one chunk": GOOD + GOOD,
    "trailer behind a row in one chunk": GOOD + COPY_TRAILER,
    "trailer before the end": COPY_TRAILER,
    "field count -2": b"\xff\xfe" + GOOD[2:],
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_row_is_refused_by_number(case: str) -> None:
    with pytest.raises(DecodeError, match="row 2 of a batch of 3"):
        CopyRows(3).feed([COPY_HEADER + GOOD, REFUSED[case], GOOD])


def test_every_truncation_of_a_row_is_refused() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(DecodeError):
            CopyRows(3).feed([COPY_HEADER + GOOD, GOOD[:length], GOOD])


def test_a_snapshot_without_its_trailer_is_not_whole() -> None:
    reader = CopyRows(1)
    for chunks in ([], [COPY_HEADER + copy_row([b"a"])]):
        reader.feed(chunks)
        with pytest.raises(DecodeError, match="without its trailer"):
            reader.close()


def test_nothing_follows_the_trailer() -> None:
    reader = CopyRows(1)
    reader.feed([COPY_HEADER + COPY_TRAILER])
    reader.feed([])
    with pytest.raises(DecodeError, match="behind its trailer"):
        reader.feed([copy_row([b"a"])])
    reader.close()


def test_a_refused_batch_changes_nothing() -> None:
    reader = CopyRows(1)
    with pytest.raises(DecodeError):
        reader.feed([COPY_HEADER + copy_row([b"a", b"b"]), COPY_TRAILER])
    with pytest.raises(DecodeError, match="without its trailer"):
        reader.close()
    assert rows_of(reader.feed([COPY_HEADER + copy_row([b"a"])])) == [[b"a"]]


@pytest.mark.parametrize("column_count", [-1, 1665])
def test_more_columns_than_a_tuple_can_have_are_refused(column_count: int) -> None:
    with pytest.raises(DecodeError, match="columns"):
        CopyRows(column_count)
