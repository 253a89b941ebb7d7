"""Snapshots and their source: which load is too much, how fast rows are read, and how long it still takes."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.ingest.snapshot import snapshotter
from sluice.ingest.snapshot.chunk_round import SnapshotLimits, groups
from sluice.ingest.snapshot.load_gate import LoadLimits, Measure, StandbyLag, above, measures
from sluice.ingest.snapshot.rate import RateLimit
from sluice.ingest.snapshot.snapshotter import Snapshotter
from sluice.ingest.status import SnapshotCounts, SnapshotProgress
from sluice.source.server_load import SourceLoad, Standby

ALL = LoadLimits(stream_lag=1 << 20, replica_lag_s=10.0, active_sessions=50)


def load(wal_end: int, *standbys: Standby) -> SourceLoad:
    return SourceLoad(wal_end_lsn=wal_end, stream_lag=0, standbys=standbys, active_sessions=0)


def test_a_standby_that_stands_still_is_further_behind_with_every_second() -> None:
    lag = StandbyLag()
    stuck = Standby(7, "one", 100, 0.2)
    seconds = [lag.slowest(load(200 + at, stuck), now=at)[0] for at in (0, 5, 30)]
    assert seconds == [0.2, 5.0, 30.0]


def test_a_standby_that_follows_is_as_far_behind_as_the_server_says() -> None:
    lag = StandbyLag()
    seconds = [lag.slowest(load(200 + at, Standby(7, "one", 199 + at, 0.3)), now=at)[0] for at in (0, 60, 120)]
    assert seconds == [0.3, 0.3, 0.3]
    assert lag.slowest(load(500, Standby(7, "one", 500, 9.0)), now=200.0) == (0.0, None), "it has replayed everything"


def test_the_slowest_standby_counts_and_is_named() -> None:
    seen = load(200, Standby(7, "near", 150, 0.3), Standby(8, "far", 100, 14.0))
    (found,) = measures(seen, LoadLimits(replica_lag_s=10.0), StandbyLag(), now=0.0)
    assert (found.value, found.words) == (14.0, "the lag of standby far, 14 s, is above 10 s")


def test_what_cannot_be_seen_counts_as_above_its_limit_and_says_what_is_missing() -> None:
    hidden = SourceLoad(wal_end_lsn=100, stream_lag=None, standbys=None, active_sessions=None)
    found = above(list(measures(hidden, ALL, StandbyLag(), now=0.0)), frozenset())
    assert [one.signal for one in found] == ["stream_lag", "replica_lag", "active_sessions"]
    assert all("GRANT pg_read_all_stats" in one.words for one in found[1:])


def test_a_limit_that_was_passed_is_kept_again_only_well_below_it() -> None:
    def is_above(value: float, *before: str) -> bool:
        return bool(above([Measure("active_sessions", value, 50, "")], frozenset(before)))

    assert [is_above(50), is_above(51)] == [False, True]
    assert [is_above(41, "active_sessions"), is_above(40, "active_sessions")] == [True, False]
    assert not is_above(50, "replica_lag"), "another limit that was passed changes nothing"


def test_tables_are_locked_together_up_to_a_number_of_partitions() -> None:
    """More locks than a server has room for are refused each time, and keep others of its sessions from theirs."""

    def job(leaves: int) -> Any:
        return SimpleNamespace(facts=SimpleNamespace(children=range(leaves)))

    partitions = [0] * 30 + [30, 200, 0, 49, 0]
    assert [[len(one.facts.children) for one in group] for group in groups(map(job, partitions))] == [
        [0] * 30,
        [30],
        [200],
        [0],
        [49],
        [0],
    ]


def test_the_server_holds_the_next_snapshot_for_as_long_as_the_settings_say_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would end a snapshot that still waits, each time."""
    held: list[float] = []
    opened = SimpleNamespace(open=lambda _options, *, waiting, hold_s: held.append(hold_s))
    monkeypatch.setattr(snapshotter, "SnapshotHolder", opened)
    limited: list[LoadLimits] = []
    parts: dict[str, Any] = {"tables": None, "segments": SimpleNamespace(gate=SimpleNamespace(limit=limited.append))}
    source: Any = None
    limits = SnapshotLimits(load=LoadLimits(hold_s=600.0))
    made = Snapshotter(source, **parts, counts=SnapshotCounts(), stop=threading.Event(), limits=limits)
    made._snapshot([])
    longer = LoadLimits(stream_lag=1, hold_s=3600.0)
    made.configure(SnapshotLimits(connections=9, load=longer))
    made._snapshot([])
    assert (held, limited) == ([610.0, 3610.0], [longer])


def progress(**waiting: int) -> SnapshotProgress:
    return SnapshotProgress(tables_total=len(waiting), waiting=dict(waiting), started_at=0.0)


def test_rows_of_finished_tables_stay_in_the_sum_and_in_the_rate() -> None:
    round_ = progress(a=100, b=300)
    assert (round_.expected_rows, round_.seconds_left(10.0)) == (400, None)
    round_.begin("a", estimated_rows=100)
    round_.tables["a"].rows = 50
    assert (round_.expected_rows, round_.seconds_left(10.0)) == (400, 70.0)
    round_.tables["a"].rows = 120
    round_.left("a", done=True)
    round_.begin("b", estimated_rows=300)
    round_.tables["b"].rows = 80
    assert (round_.expected_rows, round_.seconds_left(20.0), round_.tables_done) == (420, 22.0, 1)


def test_rows_from_earlier_rounds_are_neither_expected_again_nor_part_of_the_rate() -> None:
    round_ = progress(a=1000)
    round_.begin("a", estimated_rows=1000, rows_before=900)
    round_.tables["a"].rows = 50
    assert (round_.expected_rows, round_.seconds_left(10.0)) == (100, 10.0)


def test_nothing_is_forecast_without_an_estimate_or_past_it() -> None:
    unknown = progress(a=100, never_analysed=-1)
    unknown.begin("a", estimated_rows=100)
    unknown.tables["a"].rows = 50
    assert (unknown.expected_rows, unknown.seconds_left(10.0)) == (None, None)
    past = progress(a=100)
    past.begin("a", estimated_rows=100)
    past.tables["a"].rows = 150
    assert (past.expected_rows, past.seconds_left(10.0)) == (150, None)


class _Stop(threading.Event):
    """Notes for how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return self.is_set()


def test_each_one_waits_for_what_all_have_read() -> None:
    stop = _Stop()
    limit = RateLimit(1000, stop)
    for _ in range(3):
        limit.take(500)
    assert [round(pause, 1) for pause in stop.pauses] == [0.5, 1.0, 1.5]
    RateLimit(0, unlimited := _Stop()).take(10**9)
    assert not unlimited.pauses
