"""The applier keeps the spool short beside its work, and only while it owns the pipeline."""

import queue
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice.contract import archive, keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete, SpoolUpkeep
from sluice.contract.entries import Changes, Commits, Progress
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.replay import ANEW
from sluice.contract.table_state import State
from sluice.errors import StoreUnavailable, WriterFenced
from sluice.health.reporter import Reporter
from sluice.manifest import compaction
from sluice.manifest.reader import load_state, pruned_through, read_entries
from sluice.manifest.writer import ManifestLog
from sluice.store.memory import MemoryStore
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress import spool_upkeep
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import not_pruned, restore
from sluice_spark.progress.spool_upkeep import Upkeep
from tests.support.manifests import open_log, put, segment, table
from tests.support.offers import offers, reports
from tests.support.pipeline import wait_until
from tests.support.stores import WatchedStore

SMALL, PATIENCE = 4, 30.0


def unexpected(error: BaseException) -> None:
    pytest.fail(str(error))


def applied(store: MemoryStore, log: ManifestLog) -> None:
    """The applier has recorded that its only table has everything."""
    row = AppliedTable("7", "public", "t7", "p", "mirror", 1, State.LIVE, through_seq=log.state.seq)
    written = "2026-01-01T00:00:00+00:00"
    store.create(keys.apply_log(1), AppliedLog(1, "a", written, {"7": row}).encode())
    store.create(keys.apply_complete(1), Complete(1, 1, log.state.seq, written, {}).encode())


def changed(store: MemoryStore, log: ManifestLog) -> str:
    lsn = log.state.through_lsn + 10
    part = replace(segment("7", first_lsn=lsn), key=keys.segment("7", 1, log.state.seq))
    store.put(part.key, b"x")
    put(log, Changes((part,), Commits([lsn], [1], [7])), through_lsn=lsn)
    return part.key


def live(store: MemoryStore, count: int) -> ManifestLog:
    log = open_log(store)
    log.append(table("7", state="live"))
    for _ in range(count):
        changed(store, log)
    return log


@pytest.fixture(autouse=True)
def small_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((archive, "ENTRIES"), (compaction, "ENTRIES"), (compaction, "KEPT_SINGLE")):
        monkeypatch.setattr(module, name, SMALL)
    monkeypatch.setattr(spool_upkeep, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(spool_upkeep, "AGAIN_SECONDS", 0.0)


def more(log: ManifestLog, count: int) -> ManifestLog:
    while log.state.seq < count:
        put(log, Progress(), through_lsn=log.state.through_lsn + 10)
    return log


def upkeep(store: MemoryStore, log: ManifestLog, **options: Any) -> Upkeep:
    usual = {"require_owner": lambda: None, "retention_seconds": lambda: None, "failed": unexpected}
    return Upkeep(store, **{**usual, "state": lambda: log.state, "before": SpoolUpkeep(), **options})


def started(store: MemoryStore, log: ManifestLog, owner: Callable[[], None], failed: Callable[..., None]) -> Upkeep:
    work = upkeep(store, log, require_owner=owner, failed=failed)
    work.start()
    return work


def test_what_is_written_meanwhile_is_archived_meanwhile(store: MemoryStore) -> None:
    log = more(open_log(store), 14)
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    work = started(store, log, lambda: asked.put(None), unexpected)
    for _ in range(4):  # twice for each of the two archives
        asked.get(timeout=PATIENCE)
    more(log, 18)
    asked.get(timeout=PATIENCE)
    asked.get(timeout=PATIENCE)
    work.stop()
    assert len(list(store.list(keys.ARCHIVES))) == 3
    assert load_state(store) == log.state


def test_one_that_was_replaced_changes_nothing_more(store: MemoryStore) -> None:
    log = more(open_log(store), 14)
    asked = threading.Event()

    def replaced() -> None:
        asked.set()
        raise WriterFenced("another applier has taken this pipeline over")

    before = set(store.list(""))
    work = started(store, log, replaced, unexpected)
    assert asked.wait(PATIENCE)
    work.stop()
    assert set(store.list("")) == before


def test_an_error_is_said_and_the_work_is_done_later(store: MemoryStore) -> None:
    log = more(open_log(store), 14)
    heard: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def owner() -> None:
        if heard.empty():
            raise StoreUnavailable("away")
        asked.put(None)

    work = started(store, log, owner, heard.put)
    for _ in range(4):
        asked.get(timeout=PATIENCE)
    work.stop()
    assert isinstance(heard.get(timeout=PATIENCE), StoreUnavailable)
    assert len(list(store.list(keys.ARCHIVES))) >= 1
    assert load_state(store) == log.state


def test_what_fails_for_good_is_a_problem_of_the_pipeline_until_a_turn_goes_well() -> None:
    """With the very records: what the applier writes is read by a reporter, which judges."""
    store = WatchedStore(uuid.uuid4().hex, prefix="shop/")
    store.refuses = keys.ARCHIVES
    log = more(open_log(store), 14)
    lake = offers(MemoryStore(uuid.uuid4().hex, prefix=""))
    written = reports(store, lake)
    heard: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    work = upkeep(store, log, failed=heard.put, before=SpoolUpkeep("it failed", "2030-01-01T00:00:00+00:00"))

    def problems() -> list[tuple[str, str]]:
        written.log({}, upkeep=work.report)
        report = Reporter(pipeline="shop", store=store, lake_uri="file:///lake", source=None).take()
        found = [one for one in report.to_json()["problems"] if one["code"] == "spool.upkeep"]
        return [(one["since"][:4], one["message"]) for one in found]

    assert problems() == [("2030", "the applier cannot archive or prune it: it failed")], (
        "until something else is known"
    )
    work.start()
    for _ in range(3):
        heard.get(timeout=PATIENCE)
    refused = "the applier cannot archive or prune it: the store refuses s3:PutObject for archive/"
    assert problems() == [("2030", refused)]
    store.refuses = None
    wait_until(lambda: not work.report.failing, what="a turn went well", timeout=PATIENCE)
    assert problems() == []
    work.stop()


def test_a_process_that_ends_soon_leaves_nothing_to_do(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is run on a schedule would never come to the end otherwise."""
    monkeypatch.setattr(spool_upkeep, "SHARE", 1e-9)
    log = more(open_log(store), 40)
    work = started(store, log, lambda: None, unexpected)
    work.finish(threading.Event())
    work.stop()
    assert len(list(store.list(keys.ARCHIVES))) == 9
    failing = started(store, more(open_log(store), 50), queue.SimpleQueue[None]().get_nowait, lambda _: None)
    failing.finish(threading.Event())
    assert failing.report.failing == "an unexpected error (Empty)"


class Turns:
    """An upkeep whose steps are taken by hand."""

    def __init__(self, store: MemoryStore, log: ManifestLog, retention: float | None) -> None:
        self.retention = retention
        self.work = upkeep(store, log, retention_seconds=lambda: self.retention)

    def take(self) -> None:
        self.work._prune_at = 0.0
        while self.work._turn():
            pass


def test_what_is_applied_goes_by_itself_with_its_entries(store: MemoryStore) -> None:
    log = live(store, 30)
    turns = Turns(store, log, 0.0)
    turns.take()
    assert len(list(store.list(keys.DATA))) == 30, "nothing was recorded yet"
    applied(store, log)
    turns.take()
    assert list(store.list(keys.DATA)) == []
    assert list(store.list(keys.ARCHIVES)) == [keys.archive(28)]
    later = [changed(store, log) for _ in range(10)]
    turns.take()
    assert list(store.list(keys.DATA)) == later
    assert load_state(store) == log.state
    assert [entry.seq for entry, _ in read_entries(store, after_seq=28)] == list(range(29, 43))


def test_for_ever_deletes_no_object_and_archives_all_the_same(store: MemoryStore) -> None:
    log = live(store, 30)
    applied(store, log)
    Turns(store, log, None).take()
    assert (len(list(store.list(keys.DATA))), len(list(store.list(keys.ARCHIVES)))) == (30, 7)


def test_a_retention_made_shorter_is_said_before_anything_goes(store: MemoryStore) -> None:
    log = live(store, 30)
    applied(store, log)
    turns = Turns(store, log, None)
    turns.take()
    turns.retention = 0.0
    with capture_logs() as said:
        turns.take()
    assert len(list(store.list(keys.DATA))) == 30
    assert [line["objects"] for line in said if "shorter spool.retention" in line["event"]] == [30]
    turns.take()
    assert list(store.list(keys.DATA)) == []


def test_a_table_whose_next_entries_were_pruned_is_stale_and_the_others_go_on(store: MemoryStore) -> None:
    log = live(store, 30)
    applied(store, log)
    Turns(store, log, 0.0).take()
    floor = pruned_through(store)
    assert floor == 24
    state = log.state.tables["7"]
    behind = not_pruned(restore(state, None, place=ExaminedVersion(3, floor)), state, floor)
    assert behind.stale == Reason(ReasonCode.PRUNED, {"entry": "24", "floor": "24"})
    with_it = not_pruned(restore(state, None, place=ExaminedVersion(3, floor + 1)), state, floor)
    assert with_it.stale is None
    lost = not_pruned(restore(state, None, place=ExaminedVersion()), state, floor)
    assert lost.stale is not None
    assert lost.stale.parameters["entry"] == "2"
    ledger = Ledger(ApplyOptions("shop", "memory://x", "memory://y"), log.state)
    ledger.begin({"7": lost}, floor_seq=floor)
    assert ledger.read_seq >= floor
    for remedy, said in (("", "`sluice resync public.t7`"), (ANEW, ANEW)):
        with capture_logs() as lines:
            not_pruned(restore(state, None, place=ExaminedVersion(3, floor)), state, floor, remedy=remedy)
        (line,) = [line for line in lines if line["event"] == "table is stale"]
        assert (said in line["error"], "resync" in line["error"]) == (True, not remedy)
