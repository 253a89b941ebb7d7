"""Where the server stood and when: silent where nothing can be said, and one rate for every forecast."""

import pytest

from sluice.health.source_history import MOST, SourceHistory

MEBI = 1024**2


def watched(*looks: tuple[float, int]) -> SourceHistory:
    history = SourceHistory()
    for at, lsn in looks:
        history = history.noted(at, lsn)
    return history


def test_an_idle_source_is_never_behind_and_complete_until_now() -> None:
    idle = watched((0, 100), (15, 100), (3600, 100))
    assert idle.seconds_behind(100, now=9000) == 0.0
    assert idle.complete_at(100) == 3600


def test_behind_counts_from_when_the_server_was_first_seen_further() -> None:
    seen = watched((0, 100), (15, 200), (30, 200), (45, 300))
    assert seen.seconds_behind(300, now=50) == 0.0
    assert seen.seconds_behind(200, now=50) == 5.0
    assert seen.seconds_behind(150, now=50) == 35.0
    assert (seen.complete_at(299), seen.complete_at(150), seen.complete_at(99)) == (30, 0, None)


def test_nothing_is_claimed_before_the_first_look_and_of_what_it_found_passed() -> None:
    assert (SourceHistory().seconds_behind(5, now=9), SourceHistory().complete_at(5)) == (None, None)
    assert watched((50, 200)).seconds_behind(150, now=60) is None
    assert watched((50, 200), (100, 300)).seconds_behind(150, now=100) == 50.0


def test_before_the_first_look_the_manifest_says_when_its_positions_were_reached() -> None:
    seen = watched((200, 300)).preceded_by([(0, 50), (100, 100)])
    assert seen.seconds_behind(100, now=200) == 100.0
    assert seen.seconds_behind(200, now=200) == 50.0
    assert seen.seconds_behind(40, now=200) == 200.0, "at least since the oldest entry"
    assert seen.complete_at(100) is None, "the server may have been further: nobody looked"
    assert seen.noted(215, 400).seconds_behind(300, now=220) == 5.0


def test_entries_that_do_not_precede_the_first_look_are_left_out() -> None:
    assert watched((200, 300)).preceded_by([(250, 100), (150, 300), (10, 400)]) == watched((200, 300))
    assert SourceHistory().preceded_by([(1, 1)]) == SourceHistory()


def test_another_server_begins_a_new_history() -> None:
    seen = watched((0, 1000), (15, 50), (30, 60))
    assert seen.complete_at(1000) == 30
    assert seen.seconds_behind(40, now=30) == 15


def test_a_long_history_loses_resolution_and_no_truth() -> None:
    seen = watched(*((float(look), look) for look in range(MOST + 10)))
    assert seen.seconds_behind(-1, now=MOST) == MOST
    behind = seen.seconds_behind(1001, now=2000)
    assert behind is not None
    assert 1001 < 2000 - behind <= 1004
    assert seen.seconds_behind(MOST + 9, now=9999) == 0.0


STEADY = [(15.0 * look, 100 + 15 * look * MEBI) for look in range(9)]
FORECASTS: dict[str, tuple[list[tuple[float, int]], int | None, float | None]] = {
    "the rate of the last minutes": (STEADY, 600 * MEBI, 600.0),
    "no limit": ([(0, 0), (60, 60)], None, None),
    "nothing is written": ([(0, 500), (60, 500), (120, 500)], 10, None),
    "no look": ([], 10, None),
    "one look": ([(0, 0)], 10, None),
    "less than a minute": ([(0, 0), (59, 5000)], 10, None),
    "a clock that was set back": ([(1000, 0), (1060, 6000), (500, 6000)], 100, None),
    "a limit that is reached": ([], 0, 0.0),
    "a limit that was passed, and nothing is written": ([(0, 7), (100, 7)], -5 * MEBI, 0.0),
}


@pytest.mark.parametrize("case", FORECASTS)
def test_the_slot_lasts_at_the_rate_of_the_last_minutes_or_nothing_is_said(case: str) -> None:
    looks, left, seconds = FORECASTS[case]
    assert watched(*looks).seconds_until_lost(left) == seconds


def test_only_the_last_minutes_count() -> None:
    quiet_then_busy = watched(
        *((60.0 * look, 0) for look in range(10)), *((600.0 + 60 * look, 60 * look * MEBI) for look in range(6))
    )
    assert quiet_then_busy.bytes_per_second() == MEBI


def test_a_position_that_went_back_begins_the_rate_anew() -> None:
    seen = watched((0, 10_000), (60, 70_000), (75, 500))
    assert seen.seconds_until_lost(1000) is None
    assert seen.noted(135, 6500).seconds_until_lost(1000) == 10.0


def test_a_limit_that_was_lowered_shortens_the_time_and_does_not_change_the_rate() -> None:
    """What is left falls though nothing more is written: a rate taken from it would see a flood."""
    seen = watched((0, 0), (60, 60 * MEBI), (120, 120 * MEBI))
    assert seen.seconds_until_lost(1200 * MEBI) == 1200.0
    assert seen.noted(180, 180 * MEBI).seconds_until_lost(200 * MEBI) == 200.0


def test_a_look_that_failed_leaves_a_gap_and_no_wrong_rate() -> None:
    assert watched((0, 0), (15, 15), (240, 240)).bytes_per_second() == 1.0
