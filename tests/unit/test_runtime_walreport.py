"""The WAL side of a report: seconds behind come from positions seen with their time, and what is
not known is not said.
"""

import pytest

from sluice.health.forecast import SlotForecast
from sluice.health.wal import HISTORY_SECONDS, Headroom, WalHistory, headroom
from sluice.source.facts import ServerFacts, SlotFacts


def seen(*positions: tuple[float, int]) -> WalHistory:
    history = WalHistory()
    for at, lsn in positions:
        history.add(at, lsn)
    return history


def test_caught_up_is_no_seconds_behind_however_long_nothing_was_written() -> None:
    history = seen((0, 100), (5000, 100), (9000, 100))
    assert history.seconds_behind(100, now=9000) == 0.0


def test_seconds_behind_count_from_when_the_log_went_on_not_from_the_last_change() -> None:
    history = seen((0, 100), (100, 100), (200, 300))
    assert history.seconds_behind(100, now=200) == 100.0
    assert history.seconds_behind(200, now=200) == 50.0


def test_a_position_from_before_the_first_look_has_no_known_age() -> None:
    assert seen((50, 200), (100, 300)).seconds_behind(150, now=100) is None
    assert WalHistory().seconds_behind(150, now=100) is None


def test_a_position_that_goes_back_is_another_server() -> None:
    history = seen((0, 500), (100, 900), (200, 100))
    assert history.seconds_behind(500, now=200) == 0.0
    assert history.seconds_behind(50, now=200) is None


def test_many_looks_do_not_crowd_out_the_hour_and_the_hour_is_all_that_is_kept() -> None:
    history = WalHistory()
    for second in range(3 * int(HISTORY_SECONDS)):
        history.add(second, second * 10)
    end = 3 * HISTORY_SECONDS - 1
    assert history.seconds_behind(int(end - 3000) * 10, now=end) == pytest.approx(3000, abs=15)
    assert history.seconds_behind(int(end - 5000) * 10, now=end) is None


def test_a_pause_begins_at_its_last_position_however_near_the_one_before_it_was() -> None:
    history = seen((0, 100), (9, 200), (119, 201))
    assert history.seconds_behind(200, now=119) == 110.0


def test_a_clock_that_goes_back_changes_nothing() -> None:
    history = seen((100, 100), (200, 200), (150, 300))
    assert history.seconds_behind(200, now=200) == 0.0


def test_a_report_keeps_the_history_it_was_made_with() -> None:
    history = seen((0, 100), (100, 200))
    kept = history.copy()
    history.add(200, 900)
    assert kept.seconds_behind(200, now=200) == 0.0


def server(wal_end: int) -> ServerFacts:
    return ServerFacts(
        system_identifier="7",
        timeline=1,
        database="d",
        database_oid=5,
        server_version=180000,
        wal_end_lsn=wal_end,
        wal_level="logical",
        in_recovery=False,
        encoding="UTF8",
    )


def slot(*, restart: int | None, safe: int | None) -> SlotFacts:
    return SlotFacts(
        name="s",
        plugin="pgoutput",
        slot_type="logical",
        database="d",
        temporary=False,
        active_pid=1,
        restart_lsn=restart,
        confirmed_flush_lsn=restart,
        two_phase=False,
        failover=False,
        synced=False,
        wal_status="reserved",
        invalidation_reason="",
        conflicting=False,
        safe_wal_size=safe,
        catalog_xmin_age=None,
    )


def test_headroom_is_the_part_of_the_limit_that_is_left_and_how_long_it_lasts() -> None:
    forecast = SlotForecast()
    forecast.note(0, 0)
    forecast.note(100, 1000)
    room = headroom(server(1000), slot(restart=200, safe=200), forecast)
    assert room == Headroom(retained_bytes=800, safe_bytes=200, write_rate=10.0, seconds_left=20.0)
    assert (room.limit_bytes, room.share) == (1000, 0.2)


def test_a_slot_past_its_limit_has_nothing_left() -> None:
    room = headroom(server(1000), slot(restart=200, safe=-50), SlotForecast())
    assert room is not None
    assert (room.share, room.seconds_left) == (0.0, 0.0)


def test_without_a_limit_there_is_no_share_and_no_forecast() -> None:
    room = headroom(server(1000), slot(restart=200, safe=None), SlotForecast())
    assert room is not None
    assert (room.retained_bytes, room.share, room.limit_bytes, room.seconds_left) == (800, None, None, None)
    assert headroom(None, None, SlotForecast()) is None
