"""The log on every kind of store: what is appended is read again, one writer wins, and no damage goes unseen."""

import itertools
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice import faults
from sluice.contract import keys
from sluice.contract.entries import Body, Progress
from sluice.contract.receipt import DurableReceipt
from sluice.errors import (
    FormatTooNew,
    ManifestCorrupt,
    ObjectMissing,
    StoreRefused,
    StoreUnavailable,
    WriterFenced,
)
from sluice.manifest import checkpoint
from sluice.manifest.reader import load_state, read_entries, read_entry
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.local import LocalStore
from sluice.store.memory import MemoryStore
from tests.support.extent import FULL
from tests.support.killed import killed_at
from tests.support.manifests import changes, filled_log, histories, open_log, opened, overwrite, put, snapshot, table
from tests.support.stores import WatchedStore


def _memory() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


# the ordinary course


def test_what_was_appended_is_what_a_reader_sees(store: ObjectStore) -> None:
    assert load_state(store) == PipelineState()
    log = open_log(store, through_lsn=5)
    assert (log.state.seq, log.state.through_lsn) == (1, 5)
    bodies: list[tuple[Body, int]] = [
        (table(), 5),
        (changes(7, 9), 12),
        (snapshot(snapshot_lsn=8), 12),
        (table(version=2, state="live"), 12),
        (changes(20, version=2), 30),
    ]
    receipts = [put(log, body, through_lsn=through_lsn) for body, through_lsn in bodies]
    assert receipts == [DurableReceipt(seq, through_lsn) for seq, (_, through_lsn) in enumerate(bodies, 2)]
    assert [entry.body for entry, _ in read_entries(store, after_seq=0)] == [opened(), *(body for body, _ in bodies)]
    assert load_state(store) == log.state
    assert log.state.tables["7"].schema_version == 2
    assert read_entry(store, 6) is not None
    assert read_entry(store, 7) is None


def test_a_reader_can_begin_and_end_anywhere(store: ObjectStore) -> None:
    log = filled_log(store, 40)
    assert [entry.seq for entry, _ in read_entries(store, after_seq=0)] == list(range(1, 41))
    assert [entry.seq for entry, _ in read_entries(store, after_seq=37)] == [38, 39, 40]
    assert [entry.seq for entry, _ in read_entries(store, after_seq=3, limit=30)] == list(range(4, 34))
    assert list(read_entries(store, after_seq=3, limit=0)) == []
    assert list(read_entries(store, after_seq=40, previous_sha256=log.state.previous_sha256)) == []
    assert next(read_entries(store, after_seq=0))[0].seq == 1


def test_appends_from_many_threads_make_one_dense_chain(store: ObjectStore) -> None:
    log = open_log(store)
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda _: log.append(Progress()), range(40)))
    assert sorted(receipt.seq for receipt in receipts) == list(range(2, 42))
    assert load_state(store) == log.state


def test_an_entry_that_may_not_follow_is_never_stored(store: ObjectStore) -> None:
    log = open_log(store, through_lsn=10)
    impossible: list[tuple[Body, int]] = [(changes(20), 20), (Progress(), 9), (opened(), 10)]
    for body, through_lsn in impossible:
        with pytest.raises(ManifestCorrupt, match="entry 2 "):
            put(log, body, through_lsn=through_lsn)
    assert list(store.list(keys.MANIFEST)) == [keys.manifest_entry(1)]
    assert put(log, Progress(), through_lsn=10).seq == 2


# one writer


def test_a_replaced_writer_is_fenced_and_stays_so(store: ObjectStore) -> None:
    old = open_log(store)
    new = open_log(store)
    for _ in range(2):
        with pytest.raises(WriterFenced):
            put(old, Progress(), through_lsn=99)
    assert put(new, Progress(), through_lsn=7).seq == 3
    with pytest.raises(WriterFenced):
        put(old, Progress(), through_lsn=99)
    assert load_state(store) == new.state
    assert new.state.epoch == 2


def test_our_own_entry_that_is_being_stored_is_not_taken_for_another_writer_s(tmp_path: Path) -> None:
    log, gate = filled_log(_memory(), 2), tmp_path / "gate"
    faults.arm(f"manifest.append.after=hold:{gate}@1")
    try:
        with ThreadPoolExecutor(2) as pool:
            appended = pool.submit(log.append, Progress())
            while not faults.passages("manifest.append.after"):
                time.sleep(0.005)
            asked = pool.submit(log.require_ours)
            time.sleep(0.1)
            gate.touch()
            assert asked.result(10).seq == appended.result(10).seq == log.state.seq
    finally:
        gate.touch()
        faults.arm("")


def test_of_writers_that_open_at_once_with_equal_words_one_wins(store: ObjectStore) -> None:
    start = threading.Barrier(6)
    clock = datetime(2030, 1, 1, tzinfo=UTC)

    def run(_: int) -> ManifestLog | None:
        start.wait()
        try:
            return ManifestLog.open(store, opened(), PipelineState(), clock=lambda: clock)
        except WriterFenced:
            return None

    with ThreadPoolExecutor(6) as pool:
        winners = [log for log in pool.map(run, range(6)) if log]
    assert len(winners) == 1
    assert load_state(store) == winners[0].state


# doubt


class Doubtful(MemoryStore):
    """Answers the creates of manifest entries by a script: `ok`, `lost` (done, no answer), `down`
    (not done), `stolen` (someone else was first).
    """

    def __init__(self, *script: str) -> None:
        super().__init__(uuid.uuid4().hex)
        self.script: Iterator[str] = itertools.chain(["ok"], script, itertools.repeat("ok"))
        self.get_fails = 0

    def create(self, key: str, data: bytes | memoryview) -> None:
        step = next(self.script)
        if step == "refused":
            raise StoreRefused("no")
        if step in ("ok", "lost"):
            super().create(key, data)
        if step == "stolen":
            super().create(key, b"someone else's")
        if step != "ok":
            raise StoreUnavailable(f"{step}")

    def get(self, key: str) -> bytes:
        if self.get_fails and key.startswith(keys.MANIFEST):
            self.get_fails -= 1
            raise StoreUnavailable("get")
        return super().get(key)


@pytest.mark.parametrize("script", [["lost"], ["down"], ["down", "down", "lost"]])
def test_a_doubtful_create_ends_with_our_entry_stored_once(script: list[str]) -> None:
    store, problems = Doubtful(*script), []
    log = open_log(store, on_problem=lambda what, error: problems.append((what, str(error))))
    store.get_fails = 1
    assert put(log, Progress(), through_lsn=5) == DurableReceipt(2, 5)
    assert put(log, Progress(), through_lsn=6) == DurableReceipt(3, 6)
    store.get_fails = 0
    assert [entry.seq for entry, _ in read_entries(store, after_seq=0)] == [1, 2, 3]
    assert [what for what, _ in problems][: len(script)] == ["manifest entry 2"] * len(script)


def test_a_doubt_that_another_writer_used_fences() -> None:
    log = open_log(Doubtful("down", "stolen"))
    for _ in range(2):
        with pytest.raises(WriterFenced):
            put(log, Progress(), through_lsn=5)


@pytest.mark.parametrize("script", [["down"] * 99, ["lost", *["down"] * 99]])
@pytest.mark.parametrize("ending", ["deadline", "stop"])
def test_a_log_left_in_doubt_takes_nothing_more(script: list[str], ending: str) -> None:
    store, stop = Doubtful(*script), threading.Event()
    # Stopping at the first try is deterministic: the callback runs before the log waits.
    options: dict[str, Any] = (
        {"retry_seconds": 0.05}
        if ending == "deadline"
        else {"stop": stop, "on_problem": lambda _what, _error: stop.set()}
    )
    log = open_log(store, **options)
    with pytest.raises(StoreUnavailable, match="may or may not be there"):
        put(log, Progress(), through_lsn=5)
    store.script = itertools.repeat("ok")
    with pytest.raises(StoreUnavailable, match="closed"):
        put(log, Progress(), through_lsn=6)
    assert log.state.seq == 1
    assert open_log(store).state.seq == (3 if script[0] == "lost" else 2)


def test_a_refusing_store_closes_the_log_at_once() -> None:
    log = open_log(Doubtful("refused"))
    for _ in range(2):
        with pytest.raises(StoreRefused):
            put(log, Progress(), through_lsn=5)


POINTS = {"manifest.append.before": 1, "store.create.before": 1, "store.create.after": 2, "manifest.append.after": 2}


@pytest.mark.parametrize(("point", "stored"), POINTS.items())
def test_after_a_crash_at_any_point_the_next_writer_goes_on(tmp_path: Path, point: str, stored: int) -> None:
    script = f"""
from tests.support.manifests import Progress, open_log
from sluice.store.opening import open_store
open_log(open_store("file://{tmp_path}", options={{}})).publish(Progress(), from_lsn=0, through_lsn=5)
"""
    killed_at(f"{point}@2", script)
    store = LocalStore(tmp_path)
    assert load_state(store).seq == stored
    assert put(open_log(store), Progress(), through_lsn=6) == DurableReceipt(stored + 2, 6)


class WrittenMeanwhile(MemoryStore):
    """Says once that entry 3 is missing, as a reader sees it who asked just before entries 3 and 4 were written."""

    missed = False

    def get(self, key: str) -> bytes:
        if key == keys.manifest_entry(3) and not self.missed:
            self.missed = True
            raise ObjectMissing(key)
        return super().get(key)


def test_entries_written_while_reading_are_no_gap() -> None:
    store = WrittenMeanwhile(uuid.uuid4().hex)
    filled_log(store, 6)
    assert [entry.seq for entry, _ in read_entries(store, after_seq=0)] == [1, 2, 3, 4, 5, 6]


# checkpoints


def test_a_start_reads_from_the_newest_checkpoint_and_arrives_at_the_same_state() -> None:
    store = WatchedStore(uuid.uuid4().hex)
    log = filled_log(store, 2 * checkpoint.EVERY_ENTRIES + 3)
    assert list(store.list(keys.CHECKPOINTS)) == [keys.checkpoint(checkpoint.EVERY_ENTRIES * at) for at in (1, 2)]
    store.asked.clear()
    assert load_state(store) == log.state
    assert len(store.asked) < 40
    for key in list(store.list(keys.CHECKPOINTS)):
        store.delete(key)
    assert load_state(store) == log.state


def test_an_unreadable_checkpoint_is_passed_over(store: ObjectStore) -> None:
    """What can be wrong with its content is enumerated in tests/unit/manifest/test_damage.py."""
    log = filled_log(store, 5)
    state = list(_states(store))[2]
    checkpoint.write(store, state)
    store.put(keys.checkpoint(4), b"{}")
    store.put(keys.checkpoint(5), store.get(keys.checkpoint(3)))
    assert checkpoint.newest(store) == state
    assert load_state(store) == log.state


def _states(store: ObjectStore) -> Iterator[PipelineState]:
    state = PipelineState()
    for entry, sha256 in read_entries(store, after_seq=0):
        state = reduce(state, entry, sha256)
        yield state


def test_a_checkpoint_that_contradicts_the_chain_is_corrupt(store: ObjectStore) -> None:
    log = filled_log(store, 5)
    checkpoint.write(store, log.state)
    overwrite(store, 5)
    with pytest.raises(ManifestCorrupt, match="entry 5 is not the one that its checkpoint refers to"):
        load_state(store)
    store.delete(keys.manifest_entry(5))
    with pytest.raises(ManifestCorrupt, match="entry 5 is missing"):
        load_state(store)


def test_a_checkpoint_of_a_newer_format_stops_the_reader(store: ObjectStore) -> None:
    log = filled_log(store, 2)
    checkpoint.write(store, log.state)
    newer = store.get(keys.checkpoint(2)).replace(b'"format_version":1', b'"format_version":2', 1)
    store.put(keys.checkpoint(2), newer)
    with pytest.raises(FormatTooNew):
        load_state(store)


class NoCheckpoints(MemoryStore):
    def create(self, key: str, data: bytes | memoryview) -> None:
        if key.startswith(keys.CHECKPOINTS):
            raise StoreUnavailable("no")
        super().create(key, data)


def test_a_checkpoint_that_cannot_be_stored_harms_nothing() -> None:
    store, problems = NoCheckpoints(uuid.uuid4().hex), []
    log = open_log(store, on_problem=lambda what, error: problems.append((what, type(error))))
    while log.state.seq <= checkpoint.EVERY_ENTRIES:
        log.append(Progress())
    assert problems == [(f"checkpoint {checkpoint.EVERY_ENTRIES}", StoreUnavailable)]
    assert load_state(store) == log.state


def test_others_append_while_a_checkpoint_is_being_stored() -> None:
    class Slow(MemoryStore):
        asked, answered = threading.Event(), threading.Event()

        def create(self, key: str, data: bytes | memoryview) -> None:
            if key.startswith(keys.CHECKPOINTS):
                self.asked.set()
                assert self.answered.wait(30)
            super().create(key, data)

    store = Slow(uuid.uuid4().hex)
    log = open_log(store)
    while log.state.seq < checkpoint.EVERY_ENTRIES - 1:
        log.append(Progress())
    slow = threading.Thread(target=log.append, args=(Progress(),))
    slow.start()
    assert store.asked.wait(30)
    assert log.append(Progress()).seq == checkpoint.EVERY_ENTRIES + 1
    store.answered.set()
    slow.join()
    assert load_state(store) == log.state


@settings(max_examples=40 if FULL else 15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(), data=st.data())
def test_a_restart_from_any_checkpoint_equals_a_full_replay(
    history: list[tuple[Any, int]], data: st.DataObject
) -> None:
    store, (first, start_lsn) = _memory(), history[0]
    log = ManifestLog.open(store, first, PipelineState(), through_lsn=start_lsn)
    at = data.draw(st.integers(0, len(history) - 1))
    for number, (body, through_lsn) in enumerate(history):
        if number and body.kind == "opened":
            log = ManifestLog.open(store, body, log.state, through_lsn=through_lsn)
        elif number:
            put(log, body, through_lsn=through_lsn)
        if number == at:
            checkpoint.write(store, log.state)
    assert checkpoint.newest(store).seq == at + 1
    assert load_state(store) == log.state == list(_states(store))[-1]
