"""Rolled-back subtransactions: exactly their rows vanish, and a hundred thousand cost a few megabytes."""

import json
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract import envelope
from sluice.contract.entries import BodyCommit, Changes, Commits, Entry, Segment, Snapshot
from sluice.contract.xids import MAX_XID, XidIntervals
from sluice.errors import LimitReached, ManifestCorrupt
from sluice.ingest.assemble import aborted_xids
from sluice.ingest.assemble.aborted_xids import AbortedXids
from sluice.ingest.assemble.assembler import Assembler, AssemblerLimits
from sluice.ingest.assemble.assembly import Published
from sluice.protocol.frames import join
from sluice_spark.read.changes import committed
from tests.support import wire
from tests.support.extent import cases
from tests.support.manifests import WRITTEN_AT

COLUMNS = [("id", 23, -1, True)]
near_the_wrap = st.integers(MAX_XID - 20, MAX_XID) | st.integers(3, 20)
some_xids = st.lists(near_the_wrap | st.integers(0, MAX_XID), max_size=60)


@given(some_xids)
def test_a_set_has_exactly_its_ids_in_as_few_intervals_as_can_be(xids: list[int]) -> None:
    found = XidIntervals.of(xids)
    assert list(found) == sorted(set(xids))
    assert all(xid in found for xid in xids)
    neighbours = {xid + step for xid in xids for step in (-1, 1)} - set(xids)
    assert not any(xid in found for xid in neighbours)
    assert len(found) == sum(xid - 1 not in xids for xid in set(xids))
    assert XidIntervals.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_an_id_in_a_gap_is_never_bridged_and_the_wrap_is_no_neighbourhood() -> None:
    found = XidIntervals.of([10, 12, MAX_XID, 0, 3])
    assert [*zip(found.firsts, found.lasts, strict=True)] == [(0, 0), (3, 3), (10, 10), (12, 12), (MAX_XID, MAX_XID)]


@pytest.mark.parametrize(
    "steps", [[1], [1, -1], [-1, 2], [5, 1, 1, 0], [5, 1, 0, 0], [MAX_XID, 1], [1.0, 1], ["1", 1], {}, None, [True, 1]]
)
def test_a_list_that_is_no_set_is_refused(steps: object) -> None:
    with pytest.raises(ValueError, match="transaction id"):
        XidIntervals.from_json(steps)


@given(some_xids)
def test_collecting_one_by_one_gives_the_same_set(xids: list[int]) -> None:
    collected = AbortedXids()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aborted_xids, "MERGE_AT", 5)
        for xid in xids:
            collected.add(xid)
        assert collected.intervals() == XidIntervals.of(xids)


@given(some_xids.filter(bool), some_xids)
def test_the_applier_drops_exactly_the_rows_of_the_set(gone: list[int], rows: list[int]) -> None:
    segment = _segment(BodyCommit(340, 5, 7, XidIntervals.of(gone)))
    names = (envelope.XID, envelope.LSN, envelope.TS)
    table = pa.table(
        [pa.array(rows, pa.int64()), pa.nulls(len(rows), pa.int64()), pa.nulls(len(rows), pa.timestamp("us", "UTC"))],
        names=names,
    )
    left = committed(table, segment)
    assert left[envelope.XID].to_pylist() == [xid for xid in rows if xid not in gone]
    assert set(left[envelope.LSN].to_pylist()) <= {340}


def _segment(body: BodyCommit | None, number: int = 0) -> Segment:
    return Segment(f"stage/1/7/{number}.parquet", "1", 1, 9, 100, "0" * 64, 340, 340, {"i": 9}, body=body)


def _entry(body: Changes | Snapshot) -> Entry:
    return Entry(2, 1, "0" * 64, 300, 340, WRITTEN_AT, body)


def test_a_body_whose_set_is_missing_is_damage_and_not_a_body_without_one() -> None:
    body = BodyCommit(340, 5, 7, XidIntervals.of([1000]))
    value = json.loads(_entry(Changes((_segment(body),), Commits([340], [5], [7]))).encode())
    (stated,) = value["changes"]["bodies"]
    without = {name: item for name, item in stated.items() if name != "aborted_xids"}
    damages = [[], [{**stated, "end_lsn": 339}], [without], [{**stated, "aborted_xids": [1000]}]]
    for damage in damages:
        value["changes"]["bodies"] = damage
        with pytest.raises(ManifestCorrupt):
            Entry.decode(json.dumps(value).encode())


CASES = {"neighbours": range(1000, 101_000), "every other one": range(1000, 201_000, 2)}


@pytest.mark.parametrize("case", cases(CASES, quick=["every other one"]))
def test_a_hundred_thousand_aborted_subtransactions_cost_a_few_megabytes(case: str) -> None:
    xids = CASES[case]
    start = wire.stream_start(7, first=True)
    rows = (wire.relation(1, "a", COLUMNS, xid=7), wire.insert(1, ["1"], xid=1000))
    parts = [xids[at : at + 10_000] for at in range(0, len(xids), 10_000)]
    batches = [join([start, *rows, wire.stream_stop()])]
    batches += [join([wire.stream_abort(7, xid) for xid in part]) for part in parts]
    assembler = Assembler(start_lsn=0)
    tracemalloc.start()
    try:
        for batch in batches:
            assembler.feed(batch)
        held = tracemalloc.get_traced_memory()[0]
        (ending,) = assembler.feed(join([wire.stream_commit(7, 300, 340)])).endings
        assert isinstance(ending, Published)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
    assert peak < 10_000_000
    assert list(ending.aborted_xids) == sorted(xids)
    body = BodyCommit(ending.end_lsn, ending.commit_time_us, ending.xid, ending.aborted_xids)
    encoded = _entry(Changes(tuple(_segment(body, number) for number in range(20)), Commits([340], [5], [7]))).encode()
    assert len(encoded) < 500_000
    decoded = Entry.decode(encoded).body
    assert isinstance(decoded, Changes)
    sets = {id(segment.body.aborted_xids) for segment in decoded.segments if segment.body}
    assert len(sets) == 1


def test_more_intervals_than_the_limit_end_the_session_before_anything_is_published() -> None:
    assembler = Assembler(start_lsn=0, limits=AssemblerLimits(aborted_intervals=5000))
    assembler.feed(join([wire.stream_start(7, first=True), wire.stream_stop()]))
    assembler.feed(join([wire.stream_abort(7, xid) for xid in range(10, 40_000)]))
    with pytest.raises(LimitReached, match=r"limits\.aborted_intervals \(5000\)") as caught:
        assembler.feed(join([wire.stream_abort(7, xid) for xid in range(100_000, 140_000, 2)]))
    assert "raise the limit" in caught.value.hint
    assert assembler.through_lsn == 0


def test_more_open_streams_than_the_limit_end_the_session() -> None:
    assembler = Assembler(start_lsn=0, limits=AssemblerLimits(open_streams=2))
    for xid in (7, 8):
        assembler.feed(join([wire.stream_start(xid, first=True), wire.stream_stop()]))
    for frame in (wire.stream_abort(8, 8), wire.stream_start(9, first=True), wire.stream_stop()):
        assembler.feed(join([frame]))
    assembler.feed(join([wire.stream_start(7, first=False), wire.stream_stop()]))
    with pytest.raises(LimitReached, match=r"limits\.open_streams"):
        assembler.feed(join([wire.stream_start(10, first=True)]))
