"""What is spooled and not applied: counted once, and never taken for nothing before it was read."""

from datetime import UTC, datetime

import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.entries import Progress, Segment, Snapshot
from sluice.health import backlog
from sluice.health.backlog import Backlog, Pending
from tests.support.manifests import put
from tests.support.recorded import RecordedPipeline, row

SECOND = 1_000_000


class Spool(RecordedPipeline):
    """And what is pending of it. Its transactions are so many seconds after 1970."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(self.store)
        self.records: dict[str, AppliedTable] = {}

    def snapshot(self, name: str, *, generation: int = 1) -> None:
        part = Segment(keys.segment(name, 1, 1), name, 1, 1, 10, "0" * 64, 1, 1, {"i": 1})
        self.log.append(Snapshot(name, generation, 1, 100, (part,), final=True))

    def change(self, *names: str, at: int) -> int:
        self.changes(*names, lsn=self.log.state.through_lsn + 10, at=datetime.fromtimestamp(at, UTC))
        return self.log.state.seq

    def taken(self, name: str, *, through_seq: int, state: str = "live", generation: int = 1) -> None:
        self.records[name] = row(name, state, generation=generation, through_seq=through_seq)

    def look(self) -> Pending:
        return self.backlog.read(self.log.state, AppliedLog(1, "a", "", self.records))


def pending(files: int, oldest: int | None, live: dict[str, int | None]) -> Pending:
    times = {name: None if at is None else at * SECOND for name, at in live.items()}
    return Pending(files, 10 * files, None if oldest is None else oldest * SECOND, times)


@pytest.fixture
def spool() -> Spool:
    return Spool()


def test_changes_are_pending_until_their_table_is_through_them(spool: Spool) -> None:
    spool.table("a")
    spool.table("b")
    spool.taken("a", through_seq=spool.log.state.seq)
    spool.taken("b", through_seq=spool.log.state.seq)
    first = spool.change("a", "b", at=10)
    spool.change("b", at=20)
    assert spool.look() == pending(3, 10, {"a": 10, "b": 10})
    spool.taken("a", through_seq=first + 1)
    spool.taken("b", through_seq=first)
    assert spool.look() == pending(1, 20, {"a": None, "b": 20})
    spool.taken("b", through_seq=first + 1)
    assert spool.look() == pending(0, None, {"a": None, "b": None})


def test_a_snapshot_is_pending_until_the_table_is_live_though_changes_come_before_its_end(spool: Spool) -> None:
    spool.table("a", state="snapshot")
    spool.change("a", at=10)
    spool.snapshot("a")
    spool.table("a")
    assert (spool.look().files, spool.look().live) == (2, {})
    spool.taken("a", through_seq=2)
    assert spool.look() == pending(1, 10, {"a": 10})


def test_an_older_generations_record_and_snapshot_do_not_count(spool: Spool) -> None:
    spool.table("a", state="snapshot")
    spool.snapshot("a")
    spool.look()
    spool.taken("a", through_seq=spool.log.state.seq)
    spool.table("a", state="snapshot", generation=2)
    assert spool.look() == pending(0, None, {})
    spool.snapshot("a", generation=2)
    assert (spool.look().files, spool.look().live) == (1, {})


@pytest.mark.parametrize("stopped", ["ingest", "applier"])
def test_a_table_that_is_left_out_is_no_backlog_and_counts_again_when_it_is_back(spool: Spool, stopped: str) -> None:
    spool.table("a")
    done = spool.log.state.seq
    spool.taken("a", through_seq=done)
    spool.change("a", at=10)
    if stopped == "ingest":
        spool.table("a", state="quarantined")
    else:
        spool.taken("a", through_seq=done, state="stale")
    assert spool.look() == pending(0, None, {})
    spool.table("b")
    spool.look()
    spool.table("a")
    spool.taken("a", through_seq=done)
    assert spool.look() == pending(1, 10, {"a": 10})


def test_what_is_not_read_yet_is_never_taken_for_nothing(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "READ_AT_ONCE", 3)
    spool.table("busy")
    spool.table("late")
    for name in ("busy", "late"):
        spool.taken(name, through_seq=spool.log.state.seq)
    for number in range(5):
        spool.change("busy", at=100 + number)
    spool.change("late", at=900)
    assert spool.look() == pending(3, 100, {"busy": 100, "late": 102})
    assert spool.look() == pending(6, 100, {"busy": 100, "late": 900})


def test_the_lag_grows_from_when_a_change_was_stored_if_the_clock_of_the_source_is_ahead(spool: Spool) -> None:
    spool.table("a")
    spool.taken("a", through_seq=spool.log.state.seq)
    before = datetime.now(UTC).timestamp()
    spool.change("a", at=int(before) + 3600)
    lag = spool.look().lag_seconds("a", now=before + 600)
    assert lag is not None
    assert 590 < lag <= 600


def test_each_entry_is_read_once(spool: Spool) -> None:
    spool.table("a")
    spool.taken("a", through_seq=spool.log.state.seq)
    seq = spool.change("a", at=10)
    assert spool.look().files == 1
    spool.store.delete(keys.manifest_entry(seq))
    assert spool.look().files == 1


def test_changes_that_follow_a_long_idle_time_are_not_taken_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier ended while the source was quiet: entries without commits come first."""
    monkeypatch.setattr(backlog, "READ_AT_ONCE", 10)
    spool = Spool()
    spool.table("1", state="snapshot")
    spool.snapshot("1")
    spool.taken("1", through_seq=spool.log.state.seq)
    for _ in range(20):
        put(spool.log, Progress(), through_lsn=spool.log.state.through_lsn + 10)
    spool.change("1", at=5)
    assert spool.look().lag_seconds("1", now=100.0) is None, "not read yet"
    while spool.look().lag_seconds("1", now=100.0) is None:
        pass
    assert spool.look().lag_seconds("1", now=100.0) == 95.0
