"""How soon one manifest entry may follow another. Time is a number."""

from itertools import pairwise

import pytest

from sluice.ingest.commit.pace import BURST, REFILL_SECONDS, Pace


def written(pace: Pace, *, began: float, seconds: float, every: float) -> list[float]:
    """When entries are written while something to write comes `every` so many seconds."""
    now, times = began, []
    while now < began + seconds:
        if pace.earliest(now) <= now:
            pace.written(now)
            times.append(now)
        now += every
    return times


def test_what_comes_now_and_then_is_written_at_once() -> None:
    assert len(written(Pace(min_interval_s=0.0, now=0.0), began=0.0, seconds=300.0, every=1.5)) == 200


def test_what_comes_all_the_time_is_written_at_a_steady_pace_after_a_burst() -> None:
    times = written(Pace(min_interval_s=0.0, now=0.0), began=0.0, seconds=100.0, every=0.01)
    assert len([time for time in times if time < 0.5]) == BURST
    later = [time for time in times if time >= 50.0]
    assert abs(len(later) - 50.0 / REFILL_SECONDS) <= 1


def test_a_least_interval_holds_also_in_a_burst() -> None:
    times = written(Pace(min_interval_s=0.5, now=0.0), began=0.0, seconds=20.0, every=0.01)
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.5


def test_where_entries_cost_money_a_load_that_lasts_makes_half_as_many_as_a_burst() -> None:
    times = written(Pace(min_interval_s=1.0, now=0.0), began=0.0, seconds=200.0, every=0.01)
    assert len([time for time in times if time < 20.0]) == pytest.approx(20, abs=1)
    assert len([time for time in times if time >= 100.0]) == pytest.approx(50, abs=1)


def test_the_time_that_is_named_is_when_it_may_be_written() -> None:
    pace = Pace(min_interval_s=0.0, now=0.0)
    for _ in range(BURST):
        assert pace.earliest(1.0) <= 1.0
        pace.written(1.0)
    due = pace.earliest(1.0)
    assert 1.0 < due <= 1.0 + REFILL_SECONDS
    assert pace.earliest(due) <= due + 1e-9
