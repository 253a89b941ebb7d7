"""One order for what all producers append, stored by one thread."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sluice.contract.entries import Changes, Commits, Table
from sluice.contract.receipt import DurableReceipt
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt, StoreRefused, StoreUnavailable
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from tests.support.manifests import changes, opened, put, schema, table


class Away(MemoryStore):
    """Answers no create of a manifest entry while it is away."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.back = threading.Event()
        self.back.set()
        self.tried = threading.Event()
        self.refuses = False

    def create(self, key: str, data: bytes | memoryview) -> None:
        self.tried.set()
        self.back.wait()
        if self.refuses:
            raise StoreRefused("403")
        super().create(key, data)


class Spool:
    def __init__(self) -> None:
        self.store = Away()
        self.log = ManifestLog.open(self.store, opened(), PipelineState(), through_lsn=10)
        for name in ("7", "8"):
            self.log.append(table(name, state="live", version=1))
        self.ordered = OrderedLog(self.log)

    def leave(self) -> None:
        self.store.tried.clear()
        self.store.back.clear()

    def said(self) -> list[tuple[str, State | None]]:
        found = [one for entry, _ in read_entries(self.store, after_seq=3) for one in entry.tables]
        return [(one.table_id, one.state) for one in found]

    def publish(self, through_lsn: int) -> "Future[DurableReceipt]":
        tables, start = self.ordered.take(through_lsn), self.ordered.stored.through_lsn
        body = Changes((), Commits(), tables=tables)
        return self.ordered.run(lambda: self.ordered.publish(body, from_lsn=start, through_lsn=through_lsn))


@pytest.fixture
def spool() -> Iterator[Spool]:
    made = Spool()
    yield made
    made.store.back.set()
    made.ordered.close()


def stale(name: str) -> Table:
    return replace(table(name), state=State.STALE, schema=None)


def test_who_decides_sees_it_at_once_and_does_not_wait_for_the_store(spool: Spool) -> None:
    spool.leave()
    stored = spool.ordered.append(stale("7"))
    assert spool.ordered.state.tables["7"].state is State.STALE
    assert spool.ordered.stored.tables["7"].state is State.LIVE
    later = spool.ordered.append(Table("7", "public", "t7", None, 1, paused=True))
    assert spool.ordered.state.tables["7"].paused is not None
    assert (stored.done(), later.done()) == (False, False)
    spool.store.back.set()
    assert (stored.result().seq, later.result().seq) == (4, 5)
    assert spool.ordered.state == spool.ordered.stored == load_state(spool.store)


def test_a_decision_that_may_not_follow_is_refused_at_once_and_nothing_else_waits_for_it(spool: Spool) -> None:
    with pytest.raises(ManifestCorrupt):
        spool.ordered.append(Table("9", "public", "t9", None, 1))
    spool.ordered.append(stale("7")).result()
    assert spool.said() == [("7", State.STALE)]


def test_what_rows_said_is_stored_in_the_entry_that_has_them_and_in_no_other(spool: Spool) -> None:
    shape = replace(schema("7"), version=2)
    spool.ordered.hold(Table("7", "public", "t7", None, 1, lsn=15, schema=shape), position_lsn=15)
    spool.ordered.hold(stale("8"), position_lsn=25)
    assert spool.ordered.state.tables["7"].schema_version == 2
    spool.publish(14).result()
    assert spool.said() == []
    spool.publish(20).result()
    assert spool.said() == [("7", None)]
    assert spool.ordered.state.tables["8"].state is State.STALE
    assert spool.ordered.stored.tables["8"].state is State.LIVE
    assert load_state(spool.store).tables["7"].schema_lsns == {1: 0, 2: 15}


def test_what_a_connection_held_is_dropped_with_it(spool: Spool) -> None:
    spool.ordered.hold(stale("7"), position_lsn=15)
    assert spool.ordered.drop_held()
    assert not spool.ordered.drop_held()
    assert spool.ordered.state == spool.ordered.stored == spool.log.state
    assert spool.ordered.take(99) == ()


def test_others_wait_until_what_rows_said_of_their_table_is_stored_or_dropped(spool: Spool) -> None:
    releases: tuple[Callable[[], object], ...] = (lambda: spool.publish(20).result(), spool.ordered.drop_held)
    for release in releases:
        spool.ordered.hold(Table("7", "public", "t7", None, 1, paused=True), position_lsn=15)
        waits = threading.Thread(target=spool.ordered.wait_for, args=("7",))
        waits.start()
        spool.ordered.wait_for("8")
        assert waits.is_alive()
        release()
        waits.join(30)
        assert not waits.is_alive()


def test_nothing_is_stored_behind_what_could_not_be(spool: Spool) -> None:
    spool.leave()
    spool.store.refuses = True
    first, second = spool.ordered.append(stale("7")), spool.ordered.append(stale("8"))
    spool.store.back.set()
    for failed in (first, second):
        with pytest.raises(StoreRefused):
            failed.result()
    with pytest.raises(StoreRefused):
        spool.ordered.append(stale("8"))
    with pytest.raises((StoreRefused, StoreUnavailable)):
        spool.ordered.wait_stored()
    spool.ordered.wait_for("7")


def test_the_state_is_what_follows_from_rows_that_came_meanwhile(spool: Spool) -> None:
    """Rows that wait for a paused table are counted by their own entry, decided or not."""
    spool.ordered.append(Table("7", "public", "t7", None, 1, paused=True)).result()
    spool.ordered.hold(Table("7", "public", "renamed", None, 1), position_lsn=15)
    body = changes(20)
    spool.ordered.run(lambda: spool.ordered.publish(body, from_lsn=10, through_lsn=20)).result()
    now = spool.ordered.state.tables["7"]
    assert (now.table_name, now.paused is not None and now.paused.rows) == ("renamed", body.segments[0].rows)
    put(spool.log, changes(30), through_lsn=30)


def test_who_waits_for_a_table_hears_that_nothing_can_be_stored_any_more(spool: Spool) -> None:
    spool.ordered.hold(stale("7"), position_lsn=15)
    spool.leave()
    spool.store.refuses = True
    failed = spool.ordered.append(stale("8"))
    spool.store.back.set()
    with pytest.raises(StoreRefused):
        failed.result()
    with pytest.raises(StoreRefused):
        spool.ordered.wait_for("7")


def test_no_rows_are_published_behind_a_decision_that_could_not_be_stored(spool: Spool) -> None:
    """Rows behind it were left out on its account, and the manifest would have taken the others."""
    shape = replace(schema("8"), version=2)
    spool.leave()
    spool.ordered.run(lambda: spool.log.append(Table("8", "public", "t8", None, 1, schema=shape)))
    failed = spool.ordered.append(Table("8", "public", "other", None, 1, schema=replace(shape, replica_identity="f")))
    later, unit = spool.ordered.append(stale("7")), spool.publish(20)
    spool.store.back.set()
    for one in (failed, later, unit):
        with pytest.raises(ManifestCorrupt):
            one.result()
    assert load_state(spool.store).through_lsn == 10


def test_decisions_that_wait_are_not_made_again_for_each_one_that_is_stored() -> None:
    """Thousands of tables join at once, and each decision asks the clock."""
    asked: list[int] = []

    def clock() -> datetime:
        asked.append(1)
        return datetime(2030, 1, 1, tzinfo=UTC)

    spool, count = Away(), 100
    log = ManifestLog.open(spool, opened(), PipelineState(), through_lsn=10, clock=clock)
    ordered = OrderedLog(log)
    spool.back.clear()
    for number in range(count):
        ordered.append(table(str(100 + number), version=1))
    asked.clear()
    spool.back.set()
    ordered.wait_stored()
    ordered.close()
    assert ordered.state == log.state
    assert len(log.state.tables) == count
    assert len(asked) <= 2 * count
