"""Messages to transactions: which rows belong to which commit, however the bytes are cut into batches."""

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract.entries import Prepared
from sluice.contract.xids import XidIntervals
from sluice.errors import ProtocolViolation
from sluice.ingest.assemble.assembler import Assembler
from sluice.ingest.assemble.assembly import (
    Assembly,
    Discarded,
    Ending,
    PreparedBody,
    PreparedCommitted,
    PreparedRolledBack,
    Published,
)
from sluice.ingest.assemble.transitions import State
from sluice.protocol.frames import join
from tests.support import wire
from tests.support.extent import FULL

COLUMNS = [("id", 23, -1, True), ("note", 25, -1, False)]
WIDER = [*COLUMNS, ("extra", 25, -1, False)]
BEGIN, A, COMMIT = wire.begin(100, 7), wire.relation(1, "a", COLUMNS), wire.commit(100, 140)
ROW = wire.insert(1, ["1", "x"])
BEGIN_PREPARE, PREPARE = wire.begin_prepare(100, 140, 7, "g"), wire.prepare(100, 140, 7, "g")
PREPARED = (BEGIN_PREPARE, A, ROW, PREPARE)


@dataclass
class Reader:
    """Plays the builder: keeps (ordinal, xid, relation, column count, bytes) of rows until their transaction ends."""

    assembler: Assembler
    bodies: dict[int, list[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, list[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(list))
    prepared: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    commits: list[tuple[int, int]] = field(default_factory=list)
    origins: dict[int, tuple[str, int]] = field(default_factory=dict)

    def feed(self, *frames: bytes) -> Assembly:
        assembly = self.assembler.feed(join(frames))
        for run in assembly.runs:
            for at, index in enumerate(run.rows.tolist()):
                payload = bytes(assembly.table.raw[assembly.table.start[index] : assembly.table.end[index]])
                row = (int(run.ordinal[at]), int(run.xid[at]), run.relation.name, len(run.relation.columns), payload)
                if run.body is None:
                    assert run.lsn is not None
                    self.rows[int(run.lsn[at])].append(row)
                else:
                    self.bodies[run.body].append(row)
        for cut in assembly.truncates:
            row = (cut.ordinal, cut.xid, cut.relation.name, len(cut.relation.columns), b"truncate")
            assert (cut.body is None) == (cut.lsn is not None)
            (self.rows[cut.lsn or 0] if cut.body is None else self.bodies[cut.body]).append(row)
        for ending in assembly.endings:
            self._end(ending)
        for position, origin in assembly.commits.origins.items():
            self.origins[assembly.commits.end_lsn[position]] = origin
        self.commits += zip(assembly.commits.end_lsn, assembly.commits.xid, strict=True)
        return assembly

    def _end(self, ending: Ending) -> None:
        match ending:
            case Published():
                self.rows[ending.end_lsn] += self._kept(ending.body, ending.aborted_xids)
            case Discarded():
                self.bodies.pop(ending.body, None)
            case PreparedBody():
                self.prepared[ending.fact.gid] = self._kept(ending.body, ending.fact.aborted_xids)
            case PreparedCommitted():
                self.rows[ending.end_lsn] += self.prepared.pop(ending.gid)
            case PreparedRolledBack():
                del self.prepared[ending.gid]

    def _kept(self, body: int, aborted: XidIntervals) -> list[tuple[object, ...]]:
        return [row for row in self.bodies.pop(body, []) if int(str(row[1])) not in aborted]

    def result(self) -> dict[int, list[tuple[object, ...]]]:
        return {lsn: sorted(rows, key=lambda row: int(str(row[0]))) for lsn, rows in self.rows.items() if rows}


def reader(start_lsn: int = 0) -> Reader:
    return Reader(Assembler(start_lsn=start_lsn))


def test_rows_of_one_transaction_get_its_commit_end_and_ascending_ordinals() -> None:
    read = reader()
    read.feed(BEGIN, A, ROW, wire.insert(1, ["2", "y"]), wire.delete(1, ["1", None]), COMMIT)
    assert [row[:3] for row in read.result()[140]] == [(0, 7, "a"), (1, 7, "a"), (2, 7, "a")]
    assert read.commits == [(140, 7)]
    assert read.assembler.through_lsn == 140


def test_rows_bind_to_the_relation_version_in_force_when_they_arrived() -> None:
    read = reader()
    read.feed(BEGIN, A, ROW, wire.relation(1, "a", WIDER), wire.insert(1, ["2", "y", "z"]), COMMIT)
    assert [row[3] for row in read.result()[140]] == [2, 3]


def test_a_truncate_takes_its_place_among_the_rows() -> None:
    read = reader()
    read.feed(BEGIN, A, wire.relation(2, "b", COLUMNS), ROW, wire.truncate([1, 2]), wire.insert(1, ["2", "y"]), COMMIT)
    found = [(row[0], row[2], row[4] == b"truncate") for row in read.result()[140]]
    assert found == [(0, "a", False), (1, "a", True), (1, "b", True), (2, "a", False)]


def test_a_keepalive_moves_through_lsn_between_transactions_only() -> None:
    read = reader(50)
    assert read.feed(wire.keepalive(80)).through_lsn == 80
    assert read.feed(BEGIN, A, wire.keepalive(99)).through_lsn == 80
    assert read.assembler.state is State.TRANSACTION
    assert read.feed(ROW, COMMIT).through_lsn == 140


def test_transactions_that_ended_at_or_before_the_start_are_dropped() -> None:
    read = reader(140)
    assembly = read.feed(BEGIN, A, ROW, COMMIT)
    assert (read.result(), read.commits) == ({}, [])
    assert assembly.counts == {"skipped": 1}


def test_an_origin_is_kept_with_its_transaction_and_does_not_leak_into_the_next() -> None:
    read = reader()
    read.feed(A, BEGIN, wire.origin(5, "elsewhere"), ROW, COMMIT, wire.begin(200, 8), ROW, wire.commit(200, 240))
    assert read.origins == {140: ("elsewhere", 5)}


def test_interleaved_streams_publish_their_own_rows_and_drop_aborted_subtransactions_exactly() -> None:
    read = reader()
    read.feed(
        wire.stream_start(7, first=True),
        wire.relation(1, "a", COLUMNS, xid=7),
        wire.insert(1, ["1", "x"], xid=7),
        wire.insert(1, ["2", "gone"], xid=71),
        wire.stream_stop(),
        wire.stream_start(8, first=True),
        wire.insert(1, ["3", "other"], xid=8),
        wire.stream_stop(),
        wire.stream_abort(7, 71),
        wire.stream_abort(99, 99),
        wire.stream_start(7, first=False),
        wire.insert(1, ["4", "x"], xid=72),
        wire.stream_stop(),
        wire.stream_abort(8, 8),
        wire.stream_commit(7, 300, 340),
    )
    assert [(row[0], row[1]) for row in read.result()[340]] == [(0, 7), (2, 72)]
    assert set(read.result()) == {340}
    with pytest.raises(ProtocolViolation, match="not its first"):
        read.feed(wire.stream_start(8, first=False))


def test_rows_of_a_prepared_transaction_appear_at_its_commit_and_not_before() -> None:
    read = reader()
    assert read.feed(*PREPARED).through_lsn == 140
    assert (read.result(), read.commits) == ({}, [])
    read.feed(wire.begin(200, 8), ROW, wire.commit(200, 240), wire.commit_prepared(300, 340, 7, "g"))
    assert {lsn: [row[1] for row in rows] for lsn, rows in read.result().items()} == {240: [8], 340: [7]}
    assert read.commits == [(240, 8), (340, 7)]


def test_a_rolled_back_prepared_transaction_never_was() -> None:
    read = reader()
    assert read.feed(*PREPARED, wire.rollback_prepared(140, 340, 7, "g")).through_lsn == 340
    assert (read.result(), read.commits, read.prepared) == ({}, [], {})


def test_a_prepared_stream_keeps_what_its_subtransactions_did_not_roll_back() -> None:
    read = reader()
    read.feed(
        wire.stream_start(7, first=True),
        wire.relation(1, "a", COLUMNS, xid=7),
        wire.insert(1, ["1", "x"], xid=7),
        wire.insert(1, ["2", "x"], xid=9),
        wire.stream_stop(),
        wire.stream_abort(7, 9),
        wire.prepare(100, 140, 7, "g", streamed=True),
        wire.commit_prepared(300, 340, 7, "g"),
    )
    assert [row[1] for row in read.result()[340]] == [7]


def test_a_transaction_prepared_before_the_connection_is_known_from_what_is_durable() -> None:
    origin = ("elsewhere", 5)
    known = Prepared("g", 7, 140, 0, rows=1, origin=origin)
    read = Reader(Assembler(start_lsn=200, prepared=[known]), prepared={"g": []})
    again = read.feed(*PREPARED)
    assert [type(ending) for ending in again.endings] == [Discarded]
    read.feed(wire.commit_prepared(300, 340, 7, "g"))
    assert (read.commits, read.origins) == ([(340, 7)], {340: origin})


def test_a_transaction_prepared_before_two_phase_was_on_is_taken_though_its_position_passed() -> None:
    read = reader(200)
    assert read.feed(*PREPARED).through_lsn == 200
    read.feed(wire.commit_prepared(300, 340, 7, "g"))
    assert [row[1] for row in read.result()[340]] == [7]


def test_a_rollback_of_something_never_sent_is_counted_and_no_more() -> None:
    assert reader().feed(wire.rollback_prepared(140, 340, 7, "g")).counts == {"unknown_rollbacks": 1}


@pytest.mark.parametrize(
    "frames",
    [
        [wire.commit_prepared(300, 340, 7, "g")],
        [*PREPARED, wire.commit_prepared(300, 340, 8, "g")],
        [*PREPARED, wire.begin_prepare(200, 240, 8, "g"), wire.prepare(200, 240, 8, "g")],
        [BEGIN_PREPARE, wire.prepare(100, 140, 8, "g")],
        [BEGIN_PREPARE, wire.prepare(100, 140, 7, "h")],
        [wire.prepare(100, 140, 7, "g", streamed=True)],
    ],
)
def test_prepared_transactions_that_do_not_add_up_are_refused(frames: list[bytes]) -> None:
    """Messages in a state in which they may not come are those of test_transitions."""
    with pytest.raises(ProtocolViolation):
        reader().feed(*frames)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Ordinary and prepared transactions over two tables, with shape changes, truncates and keepalives."""
    frames: list[bytes] = []
    lsn = 1000
    widths: dict[int, int] = {}
    waiting: list[tuple[int, int]] = []
    for xid in range(draw(st.integers(1, 6))):
        final = lsn + draw(st.integers(1, 50))
        end = final + draw(st.integers(1, 50))
        prepares = draw(st.booleans())
        frames.append(
            wire.begin_prepare(final, end, 500 + xid, f"gid {xid}") if prepares else wire.begin(final, 500 + xid)
        )
        for _ in range(draw(st.integers(0, 6))):
            oid = draw(st.sampled_from([1, 2]))
            if oid not in widths or draw(st.integers(0, 5)) == 0:
                widths[oid] = draw(st.sampled_from([2, 3]))
                frames.append(wire.relation(oid, "ab"[oid - 1], COLUMNS if widths[oid] == 2 else WIDER))
            kind = draw(st.integers(0, 6))
            if kind == 0:
                frames.append(wire.truncate([oid]))
            elif kind == 1:
                frames.append(wire.keepalive(lsn))
            else:
                frames.append(wire.insert(oid, [str(draw(st.integers(0, 99)))] * widths[oid]))
        lsn = end
        frames.append(wire.prepare(final, end, 500 + xid, f"gid {xid}") if prepares else wire.commit(final, end))
        if prepares:
            waiting.append((xid, end))
        if draw(st.booleans()) and waiting:
            ended, prepare_end = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            commit, lsn = lsn + 1, lsn + 10
            if draw(st.booleans()):
                frames.append(wire.commit_prepared(commit, lsn, 500 + ended, f"gid {ended}"))
            else:
                frames.append(wire.rollback_prepared(prepare_end, lsn, 500 + ended, f"gid {ended}"))
        if draw(st.booleans()):
            lsn += draw(st.integers(0, 9))
            frames.append(wire.keepalive(lsn))
    return frames


@settings(max_examples=150 if FULL else 60)
@given(frames=streams(), data=st.data())
def test_how_the_stream_is_cut_into_batches_changes_nothing(frames: list[bytes], data: st.DataObject) -> None:
    whole, cut, at = reader(), reader(), 0
    whole.feed(*frames)
    while at < len(frames):
        size = data.draw(st.integers(1, len(frames) - at))
        cut.feed(*frames[at : at + size])
        at += size
    assert cut.result() == whole.result()
    assert cut.commits == whole.commits
    assert cut.assembler.through_lsn == whole.assembler.through_lsn
    found, expected = ({gid: sorted(map(str, rows)) for gid, rows in one.prepared.items()} for one in (cut, whole))
    assert found == expected
    assert not cut.bodies
