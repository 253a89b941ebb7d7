"""Rows kept as they were sent: encoding them later gives what encoding them at once would have given."""

import numpy as np
import pytest

from sluice.contract.xids import XidIntervals
from sluice.ingest.encode.rows import EncodedRows, encode_rows
from sluice.ingest.encode.segment import SegmentWriter
from sluice.ingest.encode.undecoded import SentRows, read_sent_file, sent_rows, sent_truncate, write_sent_file
from sluice.protocol.frames import join
from tests.support.pgoutput_bytes import insert, xlogdata
from tests.support.spooled import OID, inserted, table, walked

SCHEMA = table(("id", 23, -1), ("t", 25, -1), key=["id"])
LSN, TIME = 500, 7_000


def kept(*ids: int, xids: list[int] | None = None) -> SentRows:
    """Inserts as rows 0, 1, ...; every second frame of the batch belongs to another relation."""
    messages = []
    for number in ids:
        messages += [insert(OID, [str(number).encode(), b"text"]), insert(OID + 1, [b"other"])]
    frames = join([xlogdata(message) for message in messages])
    xid = np.array(xids or [9] * len(ids))
    return sent_rows(frames, np.arange(0, len(messages), 2), ordinal=np.arange(len(ids)), xid=xid, in_stream=False)


def rows_of(parts: list[EncodedRows]) -> list[tuple[object, ...]]:
    columns = ("id", "_sluice_op", "_sluice_ordinal", "_sluice_xid", "_sluice_lsn")
    return [tuple(row[name] for name in columns) for part in parts for row in part.batch.to_pylist()]


def encoded(part: SentRows) -> list[EncodedRows]:
    return list(part.encoded(SCHEMA, lsn=LSN, commit_time_us=TIME))


def test_rows_encoded_later_are_the_rows_encoded_at_once() -> None:
    rows = walked(SCHEMA, [insert(OID, [str(number).encode(), b"text"]) for number in (4, 5)])
    known, time, xid = np.full(2, LSN), np.full(2, TIME), np.full(2, 9)
    at_once = encode_rows(rows, SCHEMA, ordinal=np.arange(2), xid=xid, lsn=known, commit_time_us=time)
    (later,) = encoded(kept(4, 5))
    assert later.batch.equals(at_once.batch)
    assert later.stats == at_once.stats


def test_a_file_gives_back_its_parts_with_truncates_in_their_places() -> None:
    parts = [kept(1, 2, 3), sent_truncate(ordinal=3, xid=11), kept(4)]
    file = write_sent_file(parts)
    assert file.stats.rows == 5
    back = list(read_sent_file(bytes(file.data)))
    assert [part.batch for part in back] == [part.batch for part in parts]
    assert rows_of([rows for part in back for rows in encoded(part)]) == [
        (1, "i", 0, 9, LSN),
        (2, "i", 1, 9, LSN),
        (3, "i", 2, 9, LSN),
        (None, "t", 3, 11, LSN),
        (4, "i", 0, 9, LSN),
    ]


def test_changes_that_are_withheld_are_in_no_file_and_a_truncate_stays() -> None:
    parts = [kept(1, 2).withheld(), sent_truncate(ordinal=3, xid=11).withheld()]
    rows, truncate = read_sent_file(bytes(write_sent_file(parts).data))
    assert rows.is_withheld
    assert len(rows) == 2
    assert rows.batch.column("frame").to_pylist() == [b"", b""]
    assert rows_of(encoded(truncate)) == [(None, "t", 3, 11, LSN)]
    assert not truncate.is_withheld
    assert not kept(1).is_withheld


@pytest.mark.parametrize(
    ("aborted", "left"),
    [
        ([], [1, 2, 3, 4]),
        ([7], [1, 4]),
        ([9], [2, 3]),
        ([7, 9], []),
        ([1, 8, 10, 4_294_967_295], [1, 2, 3, 4]),
        ([6, 7, 8], [1, 4]),
    ],
)
def test_changes_of_rolled_back_subtransactions_are_gone(aborted: list[int], left: list[int]) -> None:
    part = kept(1, 2, 3, 4, xids=[9, 7, 7, 9]).without(XidIntervals.of(aborted))
    assert [row[0] for row in rows_of(encoded(part))] == left
    rows = inserted(SCHEMA, [b"1", b"x"])
    assert rows.touched_by(XidIntervals.of(aborted)) == (9 in aborted)


def test_rows_of_one_schema_version_never_enter_the_file_of_another() -> None:
    other = table(("id", 20, -1), ("t", 25, -1), key=["id"])
    with pytest.raises(AssertionError, match="are no rows of"):
        SegmentWriter(other).append(inserted(SCHEMA, [b"1", b"x"]))
