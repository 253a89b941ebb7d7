"""Behind a failure of its connection nothing goes to the store: neither what comes now nor what waited."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.entries import Commits, digest
from sluice.errors import SessionBroken, StoreRefused
from sluice.ingest.circuit_breaker import CircuitBreaker
from sluice.ingest.commit.committer import UPLOAD_THREADS, CommitLine, Committer
from sluice.ingest.encode.segment import SegmentFile
from sluice.ingest.encode.stats import SegmentStats
from sluice.ingest.encode.unit import Unit
from sluice.ingest.status import CommitCounts
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from tests.support.manifests import opened, schema, table
from tests.support.pipeline import wait_until

FAILED = StoreRefused("another stage failed")


class OneConnection:
    def __init__(self, gate: Path) -> None:
        self.gate = gate
        self.store = MemoryStore(uuid.uuid4().hex)
        self.log = ManifestLog.open(self.store, opened(), PipelineState(), through_lsn=10)
        self.log.append(table("7"))
        self.broken: list[BaseException] = []
        self.breaker = CircuitBreaker(on_break=self.broken.append)
        self.committer = Committer(
            self.store, OrderedLog(self.log), on_problem=lambda _: None, stop=threading.Event(), counts=CommitCounts()
        )
        self.line: CommitLine = self.committer.line(self.breaker, on_receipt=lambda _: None)

    def upload(self, number: int) -> "Future[object]":
        data = b"rows"
        return self.line.upload(
            keys.segment("7", 1, number), schema(), SegmentFile(data, digest(data), SegmentStats(1))
        )  # type: ignore[return-value]

    def submit(self, from_lsn: int) -> "Future[None]":
        end = from_lsn + 10
        return self.line.submit(Unit([], [], Commits([end], [1], [7]), [], [], (), from_lsn, end))

    def stored(self) -> list[str]:
        return [*self.store.list(keys.DATA)]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneConnection]:
    created = OneConnection(tmp_path / "gate")
    yield created
    created.gate.touch()
    created.committer.close()
    faults.arm("")


@pytest.mark.parametrize("take", [lambda one: one.upload(1), lambda one: one.submit(10)], ids=["a file", "a unit"])
def test_nothing_is_taken_after_anything_of_the_connection_failed(
    one: OneConnection, take: Callable[[OneConnection], object]
) -> None:
    before = one.log.state
    one.breaker.fail(FAILED)
    with pytest.raises(SessionBroken, match="StoreRefused"):
        take(one)
    assert (one.stored(), one.log.state) == ([], before)


def test_files_that_waited_for_a_thread_are_not_stored_after_the_failure(one: OneConnection) -> None:
    faults.arm(f"segment.put.before=hold:{one.gate}")
    under_way = [one.upload(number) for number in range(UPLOAD_THREADS)]
    waiting = [one.upload(UPLOAD_THREADS + number) for number in range(2)]
    wait_until(lambda: faults.passages("segment.put.before") == UPLOAD_THREADS, what="every thread is busy")
    one.breaker.fail(FAILED)
    one.gate.touch()
    assert [type(future.exception(60)) for future in waiting] == [SessionBroken] * 2
    assert [future.exception(60) for future in under_way] == [None] * UPLOAD_THREADS
    assert len(one.stored()) == UPLOAD_THREADS


def test_a_unit_that_waited_behind_one_that_failed_is_not_even_begun(one: OneConnection) -> None:
    """Its positions would be refused as well, which is the second line of defence."""
    faults.arm(f"commit.before=hold:{one.gate}+raise:StoreRefused@1")
    before = one.log.state
    first, second = one.submit(10), one.submit(20)
    wait_until(lambda: faults.passages("commit.before") == 1, what="the first one is held")
    one.gate.touch()
    assert (type(first.exception(60)), type(second.exception(60))) == (StoreRefused, SessionBroken)
    assert (faults.passages("commit.before"), one.log.state) == (1, before)
    assert [type(error) for error in one.broken] == [StoreRefused]


@pytest.mark.parametrize(("ahead", "earliest"), [(3600, -1), (-3600, -3601)])
def test_what_is_complete_is_never_later_than_now_though_the_clock_of_the_source_is_ahead(
    one: OneConnection, ahead: int, earliest: int
) -> None:
    now = time.time()
    one.line.submit(Unit([], [], Commits([20], [int((now + ahead) * 1e6)], [7]), [], [], (), 10, 20)).result(60)
    assert now + earliest < one.committer.counts.complete_at < time.time()
