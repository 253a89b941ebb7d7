"""The forecast of a slot's end: the server's own rate over the last minutes, and silence where
there is nothing to say.
"""

from sluice.health.forecast import SlotForecast

MEBI = 1024**2


def watched(*looks: tuple[float, int]) -> SlotForecast:
    forecast = SlotForecast()
    for at, lsn in looks:
        forecast.note(at, lsn)
    return forecast


def test_the_room_is_used_up_at_the_rate_of_the_last_minutes() -> None:
    forecast = watched(*((15.0 * look, 100 + 15 * look * MEBI) for look in range(9)))
    assert forecast.seconds_until_lost(600 * MEBI) == 600.0


def test_only_the_last_minutes_count() -> None:
    quiet_then_busy = watched(
        *((60.0 * look, 0) for look in range(10)), *((600.0 + 60 * look, 60 * look * MEBI) for look in range(6))
    )
    assert quiet_then_busy.bytes_per_second() == MEBI


def test_there_is_no_forecast_without_a_limit_and_while_nothing_is_written() -> None:
    assert watched((0, 0), (60, 60)).seconds_until_lost(None) is None
    assert watched((0, 500), (60, 500), (120, 500)).seconds_until_lost(10) is None


def test_a_rate_of_less_than_a_minute_is_no_rate() -> None:
    assert watched().seconds_until_lost(10) is None
    assert watched((0, 0)).seconds_until_lost(10) is None
    assert watched((0, 0), (59, 5000)).seconds_until_lost(10) is None


def test_a_position_that_went_back_is_another_servers_and_begins_anew() -> None:
    forecast = watched((0, 10_000), (60, 70_000), (75, 500))
    assert forecast.seconds_until_lost(1000) is None
    forecast.note(135, 6500)
    assert forecast.seconds_until_lost(1000) == 10.0


def test_a_clock_that_was_set_back_begins_anew() -> None:
    assert watched((1000, 0), (1060, 6000), (500, 6000)).seconds_until_lost(100) is None


def test_room_that_is_used_up_is_no_time_left_whatever_is_written() -> None:
    assert watched().seconds_until_lost(0) == 0.0
    assert watched((0, 7), (100, 7)).seconds_until_lost(-5 * MEBI) == 0.0


def test_a_limit_that_was_lowered_shortens_the_time_and_does_not_change_the_rate() -> None:
    """The room falls though nothing more is written: a rate taken from the room would see a flood."""
    forecast = watched((0, 0), (60, 60 * MEBI), (120, 120 * MEBI))
    assert forecast.seconds_until_lost(1200 * MEBI) == 1200.0
    forecast.note(180, 180 * MEBI)
    assert forecast.seconds_until_lost(200 * MEBI) == 200.0


def test_a_look_that_failed_leaves_a_gap_and_no_wrong_rate() -> None:
    assert watched((0, 0), (15, 15), (240, 240)).bytes_per_second() == 1.0
