"""The WAL's way into the lake: stages that are computed once for page and metrics, and the slot's headroom."""

from dataclasses import replace

from sluice.health.source_history import SourceHistory
from sluice.health.wal import Positions, headroom, stages
from tests.support.source_facts import server, slot


def test_a_slot_past_its_limit_has_nothing_left() -> None:
    found = headroom(server(1000), slot(restart=200, safe=-50), SourceHistory())
    assert found is not None
    assert (found.share, found.seconds_left) == (0.0, 0.0)


def test_without_a_limit_there_is_no_share_and_no_forecast() -> None:
    found = headroom(server(1000), slot(restart=200, safe=None), SourceHistory())
    assert found is not None
    assert (found.retained_bytes, found.share, found.limit_bytes, found.seconds_left) == (800, None, None, None)
    assert headroom(None, None, SourceHistory()) is None


def behind(at: Positions, *, now: float = 100) -> dict[str, tuple[int | None, float | None]]:
    return {stage.stage: (stage.behind_bytes, stage.behind_seconds) for stage in stages(at, now=now)}


STAGES = ("server", "received", "flushed", "confirmed", "applied")
HISTORY = SourceHistory().noted(0, 500).noted(60, 900).noted(90, 1000)


def test_a_stage_is_behind_since_the_server_went_further() -> None:
    at = Positions(HISTORY, 1000, 500, confirmed_lsn=400, applied_lsn=450, received_lsn=950, has_live=True)
    expected = ((0, 0.0), (50, 10.0), (500, 40.0), (600, 100.0), (550, 40.0))
    assert behind(at) == dict(zip(STAGES, expected, strict=True))


def test_the_wal_of_others_is_no_lag_once_it_was_received() -> None:
    at = Positions(HISTORY, 1000, 500, received_lsn=1000, complete_lsn=1000, has_live=True)
    assert (behind(at)["flushed"], behind(at)["applied"]) == ((0, 0.0), (None, 0.0))


def test_what_is_not_durable_or_not_applied_is_lag_by_its_own_age() -> None:
    at = Positions(HISTORY, 1000, 1000, oldest_unflushed_at=70, has_live=True)
    assert (behind(at)["flushed"][1], behind(at)["applied"][1]) == (30.0, 30.0)
    assert behind(replace(at, oldest_unapplied_at=20))["applied"][1] == 80.0


def test_while_the_server_is_not_reached_lag_counts_from_when_there_was_none() -> None:
    at = Positions(HISTORY, None, 950, received_lsn=990)
    expected = ((None, None), (None, 40.0), (None, 40.0), (None, None), (None, None))
    assert behind(at) == dict(zip(STAGES, expected, strict=True))
