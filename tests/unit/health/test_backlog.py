"""What is spooled and not applied: counted once, dropped when it is applied, and never taken for
nothing because it was not read yet.
"""

import uuid

import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.entries import Changes, Commits, Progress, Segment, Snapshot, Table
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.health import backlog
from sluice.health.backlog import Backlog, Pending
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from tests.support.manifests import opened, put
from tests.support.recorded import row


class Spool:
    """A manifest on a memory store, and the applier's word on it."""

    def __init__(self) -> None:
        self.store = MemoryStore(f"backlog-{uuid.uuid4().hex}", prefix="shop/")
        self.log = ManifestLog.open(self.store, opened(start_lsn=100), PipelineState(), through_lsn=100)
        self.backlog = Backlog(self.store)
        self.records: dict[str, AppliedTable] = {}

    def table(self, name: str, *, state: str = "live", generation: int = 1) -> None:
        schema = TableSchema(name, 1, "public", name, "d", ())
        self.log.append(Table(name, "public", name, State(state), generation, lsn=100, schema=schema))

    def snapshot(self, name: str, *, generation: int = 1) -> None:
        self.log.append(Snapshot(name, generation, 1, 100, (self._segment(name, 1),), final=True))

    def change(self, *names: str, at_us: int) -> int:
        lsn = self.log.state.through_lsn + 10
        put(
            self.log,
            Changes(tuple(self._segment(name, lsn) for name in names), Commits([lsn], [at_us], [7])),
            through_lsn=lsn,
        )
        return self.log.state.seq

    def applied(self, name: str, *, through_seq: int, state: str = "live", generation: int = 1) -> None:
        self.records[name] = row(name, state, generation=generation, through_seq=through_seq)

    def look(self) -> Pending:
        return self.backlog.read(self.log.state, AppliedLog(1, "a", "", self.records))

    def _segment(self, name: str, lsn: int) -> Segment:
        return Segment(keys.segment(name, 1, lsn), name, 1, 1, 1000, "0" * 64, lsn, lsn, {"i": 1})


@pytest.fixture
def spool() -> Spool:
    return Spool()


def test_changes_are_pending_until_their_table_is_through_them(spool: Spool) -> None:
    spool.table("a")
    spool.table("b")
    spool.applied("a", through_seq=spool.log.state.seq)
    spool.applied("b", through_seq=spool.log.state.seq)
    first = spool.change("a", "b", at_us=10)
    spool.change("b", at_us=20)
    assert spool.look() == Pending(3, 3000, 10, {"a": 10, "b": 10})
    spool.applied("a", through_seq=first + 1)
    spool.applied("b", through_seq=first)
    assert spool.look() == Pending(1, 1000, 20, {"a": None, "b": 20})
    spool.applied("b", through_seq=first + 1)
    assert spool.look() == Pending(0, 0, None, {"a": None, "b": None})


def test_a_snapshot_is_pending_until_the_table_is_live_though_changes_come_before_its_end(spool: Spool) -> None:
    spool.table("a", state="snapshot")
    spool.change("a", at_us=10)
    spool.snapshot("a")
    spool.table("a")
    assert (spool.look().files, spool.look().live) == (2, {})
    spool.applied("a", through_seq=2)
    assert spool.look() == Pending(1, 1000, 10, {"a": 10})


def test_an_older_generations_record_and_snapshot_do_not_count(spool: Spool) -> None:
    spool.table("a", state="snapshot")
    spool.snapshot("a")
    spool.look()
    spool.applied("a", through_seq=spool.log.state.seq)
    spool.table("a", state="snapshot", generation=2)
    assert spool.look() == Pending(0, 0, None, {})
    spool.snapshot("a", generation=2)
    assert (spool.look().files, spool.look().live) == (1, {})


@pytest.mark.parametrize("stopped", ["ingest", "applier"])
def test_a_table_that_is_left_out_is_no_backlog_and_counts_again_when_it_is_back(spool: Spool, stopped: str) -> None:
    spool.table("a")
    done = spool.log.state.seq
    spool.applied("a", through_seq=done)
    spool.change("a", at_us=10)
    if stopped == "ingest":
        spool.table("a", state="quarantined")
    else:
        spool.applied("a", through_seq=done, state="stale")
    assert spool.look() == Pending(0, 0, None, {})
    spool.table("b")
    spool.look()
    spool.table("a")
    spool.applied("a", through_seq=done)
    assert spool.look() == Pending(1, 1000, 10, {"a": 10})


def test_what_is_not_read_yet_is_never_taken_for_nothing(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "READ_AT_ONCE", 3)
    spool.table("busy")
    spool.table("late")
    for name in ("busy", "late"):
        spool.applied(name, through_seq=spool.log.state.seq)
    for number in range(5):
        spool.change("busy", at_us=100 + number)
    spool.change("late", at_us=900)
    assert spool.look() == Pending(3, 3000, 100, {"busy": 100, "late": 102})
    assert spool.look() == Pending(6, 6000, 100, {"busy": 100, "late": 900})


def test_each_entry_is_read_once(spool: Spool) -> None:
    spool.table("a")
    spool.applied("a", through_seq=spool.log.state.seq)
    seq = spool.change("a", at_us=10)
    assert spool.look().files == 1
    spool.store.delete(keys.manifest_entry(seq))
    assert spool.look().files == 1


def test_changes_that_follow_a_long_idle_time_are_not_taken_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier ended while the source was quiet: entries without commits come first."""
    monkeypatch.setattr(backlog, "READ_AT_ONCE", 10)
    spool = Spool()
    spool.table("1", state="snapshot")
    spool.snapshot("1")
    spool.applied("1", through_seq=spool.log.state.seq)
    for _ in range(20):
        put(spool.log, Progress(), through_lsn=spool.log.state.through_lsn + 10)
    spool.change("1", at_us=5_000_000)
    assert spool.look().lag_seconds("1", now=100.0) is None, "not read yet"
    while spool.look().lag_seconds("1", now=100.0) is None:
        pass
    assert spool.look().lag_seconds("1", now=100.0) == 95.0
