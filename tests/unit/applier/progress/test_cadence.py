"""When tables get their windows: in time, not too often, each in its turn, and idle ones for nothing."""

import statistics
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from sluice.contract import keys
from sluice.contract.applied import Complete
from sluice.contract.entries import Progress
from sluice.contract.lake_targets import LakeTarget
from sluice.errors import ManifestCorrupt, StoreUnavailable
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress import cadence
from sluice_spark.progress.boundary import Boundaries
from sluice_spark.progress.intake import GAPS_SECONDS, HEARD_SECONDS, Intake
from sluice_spark.progress.table_progress import Work
from tests.spark.changes import Manifest
from tests.spark.model import SCHEMA
from tests.support.extent import slow
from tests.support.stores import WatchedStore
from tests.unit.applier.ledgers import begin, commit, ledger_of


class World:
    """Tables with their snapshot in the lake, a manifest to write to, and a clock."""

    def __init__(self, count: int, *, apart_seconds: float = 1e9, **options: Any) -> None:
        self.store = WatchedStore(uuid.uuid4().hex, prefix="shop/")
        self.manifest = Manifest(self.store)
        self.schemas = [
            replace(SCHEMA, table_id=str(20_000 + number), table_name=f"t{number}") for number in range(count)
        ]
        seq = begin(self.manifest, *self.schemas)
        self.ledger = ledger_of(self.store, ExaminedVersion(0, seq), **options)
        self.intake = Intake(self.store, self.ledger, poll_seconds=0.0)
        self.boundaries = Boundaries(self.ledger, apart_seconds=apart_seconds)
        self.published: list[Complete] = []
        self.look(now=0.0)

    def change(self, *numbers: int, rows: int = 1) -> int:
        return self.manifest.unstored(*(self.schemas[number] for number in numbers), rows=rows)

    def changed(self, *numbers: int, now: float, rows: int = 1) -> int:
        seq = self.change(*numbers, rows=rows)
        self.look(now=now)
        return seq

    def look(self, *, now: float) -> None:
        while self.intake.read(now=now):
            pass
        self.boundaries.turn(now=now)

    def ready(self, *, now: float) -> list[str]:
        """The names of the tables that may have a window, the first one first."""
        return [work.state.table_name for work in self._ready(now)]

    def _ready(self, now: float) -> Iterator[Work]:
        ready = self.ledger.ready(now=now, boundary_seq=self.boundaries.seq)
        return (work for work in ready if work.window.segments)

    def begin(self, *, now: float) -> Work | None:
        work = next(self._ready(now), None)
        if work is not None:
            self.ledger.begun(work, now=now)
        return work

    def end(self, work: Work, *, seconds: float = 0.0) -> None:
        phases = {"merge": seconds, "commit": 0.8 * seconds}  # one is a part of the other
        commit(self.ledger, work, took_seconds=seconds, seconds=phases)

    def serve(self, *, now: float, seconds: float = 0.0) -> list[Work]:
        """All windows that are due, one after the other and in no time, which say that they took `seconds`."""
        served = []
        while (work := self.begin(now=now)) is not None:
            self.end(work, seconds=seconds)
            served.append(work)
        self.boundaries.turn(now=now)
        self.publish(now=now)
        return served

    def publish(self, *, now: float) -> None:
        self.boundaries.publish(self.ledger.report(), lambda one, _: self.published.append(one), now=now)


def test_a_table_that_has_rested_is_served_at_once_and_then_once_per_target() -> None:
    world = World(1, freshness_seconds=2.0)
    first = world.changed(0, now=10.0)
    assert [work.window.last_seq for work in world.serve(now=10.0)] == [first]
    world.changed(0, now=10.5)
    last = world.changed(0, now=11.5)
    assert world.serve(now=11.9) == []
    assert world.ledger.next_due(after=11.9) == 12.0
    assert [work.window.last_seq for work in world.serve(now=12.0)] == [last], "with all that came meanwhile"
    assert world.ledger.next_due(after=12.0) == float("inf")


def test_a_lake_table_waits_as_long_as_its_own_target_says() -> None:
    own = {"targets": [{"kind": "mirror", "freshness": 9.0}], "freshness": 4.0}
    world = World(2, freshness_seconds=2.0, tables={"public.t0": own})
    world.changed(0, 1, now=10.0)
    assert len(world.serve(now=10.0)) == 2
    world.changed(0, 1, now=10.5)
    assert [work.state.table_name for work in world.serve(now=12.0)] == ["t1"]
    assert world.ledger.next_due(after=12.0) == 19.0
    assert [work.state.table_name for work in world.serve(now=19.0)] == ["t0"]


def test_the_freshness_of_a_target_comes_before_that_of_its_table_and_may_change() -> None:
    targets = [LakeTarget("mirror"), LakeTarget("history", "past", freshness=30.0)]
    given = {"freshness": 4.0, "targets": [one.encode() for one in targets]}
    options = ApplyOptions("shop", "memory://s", "memory://l", tables={"public.t": given})
    assert [options.freshness_of("public.t", name) for name in ("", "past")] == [4.0, 30.0]
    assert options.freshness_of("public.other") == 2.0
    assert options.targets_of("public.t") == (targets[0], LakeTarget("history", "past", freshness=7.0))


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(
    pauses=st.lists(st.floats(0.01, 5.0), min_size=1, max_size=40),
    target=st.floats(0.1, 4.0),
    apart=st.floats(0.5, 8.0),
)
def test_no_change_waits_past_its_target_and_windows_are_bounded_by_targets_and_boundaries(
    pauses: list[float], target: float, apart: float
) -> None:
    world = World(2, apart_seconds=apart, freshness_seconds=target)
    now, windows = 0.0, 0
    waiting: dict[int, float] = {}
    """When each entry that is not applied came."""
    for pause in pauses:
        came = now + pause
        while now < came:
            now = min(world.ledger.next_due(after=now), came)
            if now == came:
                waiting[world.change(0, 1)] = now
                world.look(now=now)
            assert all(now - at < target + 1e-6 for at in waiting.values())
            for work in world.serve(now=now):
                windows += work.table_id == "20000"
                waiting = {seq: at for seq, at in waiting.items() if seq > work.window.last_seq}
    assert windows <= now / target + now / apart + 3


def test_the_table_that_is_due_for_most_of_its_targets_comes_first() -> None:
    world = World(3, freshness_seconds=10.0, tables={"public.t1": {"freshness": 1.0}, "public.t2": {"freshness": 60}})
    world.changed(0, 1, 2, now=100.0)
    assert sorted(world.ready(now=100.0)) == ["t0", "t1", "t2"]
    assert world.ready(now=101.0) == ["t1", "t0", "t2"]


def test_a_table_with_a_long_backlog_takes_turns_with_the_others_on_one_worker() -> None:
    world = World(3, freshness_seconds=1.0, max_window_bytes=1)
    for _ in range(30):
        world.change(0)
    now, turns = 50.0, []
    for _ in range(12):
        world.changed(1, 2, now=now)
        work = world.begin(now=now)
        assert work is not None
        turns.append(work.state.table_name)
        now += 3.0
        world.end(work)
    assert sorted(turns[:3]) == sorted(turns[3:6]) == sorted(turns[6:9]) == ["t0", "t1", "t2"]


def test_a_backlog_that_is_worth_a_window_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, freshness_seconds=100.0)
    world.changed(0, now=1.0)
    assert len(world.serve(now=1.0)) == 1
    world.changed(0, now=2.0)
    assert world.ready(now=2.0) == []
    monkeypatch.setattr(cadence, "SMALL_BYTES", 1)
    assert world.ready(now=2.0) == ["t0"]


def test_changes_that_are_worth_what_a_window_takes_do_not_wait_for_the_target() -> None:
    world = World(1, freshness_seconds=100.0)
    world.changed(0, now=1.0)
    assert len(world.serve(now=1.0, seconds=0.05)) == 1
    for number in range(1, 6):
        assert world.ready(now=1.5) == []
        world.changed(0, rows=int(0.01 / cadence.WORTH_SECONDS), now=1.0 + number / 10)
    assert [work.window.last_seq for work in world.serve(now=1.5)] == [world.ledger.read_seq]
    assert world.ready(now=1.6) == []


def test_a_table_in_a_worker_does_not_hold_up_another() -> None:
    world = World(2, freshness_seconds=1.0)
    world.changed(0, now=1.0)
    slow = world.begin(now=1.0)
    assert slow is not None
    for second in range(2, 9):
        world.changed(0, 1, now=float(second))
        assert [work.state.table_name for work in world.serve(now=float(second))] == ["t1"]
    world.end(slow)
    assert world.ready(now=9.0) == ["t0"]


@pytest.mark.parametrize("options", [{"once": True}, {"until_lsn": 1}])
def test_with_an_end_to_reach_nothing_waits(options: dict[str, Any]) -> None:
    world = World(1, freshness_seconds=100.0, **options)
    for second in range(3):
        world.changed(0, now=second / 10)
        assert len(world.serve(now=second / 10)) == 1


def test_what_lay_there_when_the_applier_started_is_due_before_what_came_later() -> None:
    world = World(2, freshness_seconds=5.0)
    world.change(0)
    world.intake = Intake(world.store, world.ledger, poll_seconds=1.0)
    world.look(now=1000.0)
    world.changed(1, now=1000.5)
    assert world.ledger.tables["20001"].pending.since is None, "the next look is not due"
    world.look(now=1001.0)
    assert [world.ledger.tables[key].pending.since for key in ("20000", "20001")] == [float("-inf"), 1001.0]
    assert world.ready(now=1001.0) == ["t0", "t1"]


class Busy:
    """Workers that take `window_seconds` for each window, under entries that come all the time."""

    def __init__(self, world: World, *, workers: int, window_seconds: float) -> None:
        self.world = world
        self.workers = workers
        self.window_seconds = window_seconds
        self.windows: Counter[str] = Counter()
        self.oldest: list[float] = []
        """How long the oldest change in each window had waited when the window ended."""
        self._running: list[tuple[float, float, Work]] = []

    def run(self, *, seconds: int) -> None:
        for tick in range(seconds * 10):
            now, world = tick / 10, self.world
            world.change(*range(len(world.schemas)))
            for end, since, work in [item for item in self._running if item[0] <= now]:
                world.end(work)
                self.oldest.append(end - since)
            self._running = [item for item in self._running if item[0] > now]
            world.look(now=now)
            while len(self._running) < self.workers and (begun := world.begin(now=now)) is not None:
                self.windows[begun.state.table_name] += 1
                waits_since = begun.progress.pending.since
                assert waits_since is not None
                self._running.append((now + self.window_seconds, waits_since, begun))
            world.publish(now=now)


@slow
def test_boundaries_of_overloaded_workers_cost_no_windows_and_delay_few_tables() -> None:
    """Ten tables, and a worker for one window of half a second at a time: a round takes five seconds."""
    ages = {}
    for apart in (1e9, 0.0):
        busy = Busy(World(10, apart_seconds=apart, freshness_seconds=1.0), workers=1, window_seconds=0.5)
        busy.run(seconds=80)
        assert min(busy.windows.values()) >= 80 / 0.5 / 10 - 1
        ages[apart] = statistics.fmean(busy.oldest[20:])
    assert len(busy.world.published) >= 4
    assert ages[0.0] < 1.25 * ages[1e9], ages


class Counted(dict[str, Any]):
    asked = 0

    def __getitem__(self, key: str) -> Any:
        self.asked += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self.asked += len(self)
        return super().__iter__()

    def items(self) -> Any:
        self.asked += len(self)
        return super().items()

    def values(self) -> Any:
        self.asked += len(self)
        return super().values()


def test_a_round_of_the_loop_asks_nothing_of_tables_at_rest() -> None:
    world = World(300, apart_seconds=5.0)
    world.serve(now=1.0)
    world.look(now=2.0)
    world.changed(7, now=10.0)
    counted = world.ledger.tables = Counted(world.ledger.tables)
    for step in range(20):
        now = 10.01 + step / 1000
        world.look(now=now)
        world.begin(now=now)
        world.ledger.next_due(after=now)
        world.ledger.pending_entries()
        world.ledger.idle()
    assert 0 < counted.asked / 20 < 30


def test_pauses_between_looks_grow_while_they_find_nothing_and_begin_again_short() -> None:
    world = World(1)
    world.intake = Intake(world.store, world.ledger, poll_seconds=0.25, idle_seconds=5.0)
    now, pauses = 10.0, []
    while now < 200.0:
        world.intake.read(now=now)
        pauses.append(world.intake.next_look - now)
        now = world.intake.next_look
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.25, 5.0)
    assert 80 < len(pauses) < 120
    world.manifest.append(Progress())
    assert world.intake.read(now=now) is False
    assert world.intake.next_look - now == 5.0, "an advance is no change"
    world.change(0)
    now = world.intake.next_look
    assert world.intake.read(now=now) is False
    assert world.intake.next_look - now == 1.5
    now = world.intake.next_look
    world.intake.read(now=now)
    assert world.intake.next_look - now == 0.25


def _listening() -> World:
    """With one table, whose manifest is looked at now and then and when somebody rings."""
    world = World(1)
    world.intake = Intake(world.store, world.ledger, poll_seconds=0.25, idle_seconds=30.0)
    world.look(now=10.0)
    world.store.gets = world.store.listings = 0
    return world


def test_an_entry_that_ingest_rings_for_is_one_request_and_no_look_comes_before_a_minute() -> None:
    world = _listening()
    for step in range(1, 6):
        seq = world.change(0)
        world.intake.read(now=10.0 + step / 100, rung=seq)
        assert world.ledger.read_seq == seq
        world.intake.read(now=10.001 + step / 100, rung=seq)
    assert (world.store.gets, world.store.listings) == (5, 0)
    assert world.intake.next_look == pytest.approx(10.05 + HEARD_SECONDS)


def test_an_entry_whose_ring_was_lost_is_found_and_looks_are_frequent_again() -> None:
    world = _listening()
    world.intake.read(now=10.1, rung=world.change(0))
    silent = world.change(0)
    world.intake.read(now=50.0)
    assert world.ledger.read_seq == silent - 1
    now = world.intake.next_look
    world.intake.read(now=now)
    assert world.ledger.read_seq == silent
    assert world.intake.next_look - now < 2.0


def test_who_rings_for_what_is_not_there_costs_one_request_in_each_pause() -> None:
    world = _listening()
    for step in range(1000):
        world.intake.read(now=10.0 + step / 1000, rung=10**9)
    assert world.store.gets <= 10
    seq = world.change(0)
    world.intake.read(now=11.1, rung=seq)
    assert world.ledger.read_seq == seq


def test_a_look_at_the_end_of_the_manifest_is_one_request_and_a_gap_is_found_soon() -> None:
    world = World(1)
    world.store.listings = 0
    for step in range(50):
        world.look(now=1.0 + step / 10)
    assert world.store.listings == 0
    world.look(now=GAPS_SECONDS)
    assert world.store.listings == 1
    lost = world.change(0)
    world.change(0)
    world.store.delete(keys.manifest_entry(lost))
    with pytest.raises(ManifestCorrupt, match=f"entry {lost} is missing"):
        world.look(now=2 * GAPS_SECONDS)


def test_an_entry_is_read_at_once_when_the_store_answers_again_after_it_failed_at_the_ring() -> None:
    world = _listening()
    world.intake.read(now=10.1, rung=world.change(0))
    seq = world.change(0)
    world.store.away = True
    with pytest.raises(StoreUnavailable):
        world.intake.read(now=20.0, rung=seq)
    world.store.away = False
    world.intake.read(now=25.0)
    assert world.ledger.read_seq == seq
