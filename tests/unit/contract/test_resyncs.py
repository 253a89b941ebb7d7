"""Pauses between snapshots that nobody asked for."""

from datetime import UTC, datetime, timedelta

import pytest

from sluice.contract.resyncs import PAUSES_SECONDS, PEACE_SECONDS, REST, Cause, Resyncs

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).isoformat()


def test_a_loop_of_changes_is_read_again_with_growing_pauses() -> None:
    found, now, pauses = Resyncs(), T0, []
    for _ in range(len(PAUSES_SECONDS) + 1):
        found = found.begun(Cause.REWRITE, now.isoformat()).read(now.isoformat())
        pauses.append((found.next_at(now) - now).total_seconds())
        now = found.next_at(now)
    assert pauses == [*PAUSES_SECONDS[1:], PAUSES_SECONDS[-1], PAUSES_SECONDS[-1]]
    assert found.counts == {"rewrite": len(PAUSES_SECONDS) + 1}


def test_a_table_that_was_left_in_peace_is_read_again_at_once() -> None:
    found = Resyncs().begun(Cause.KEY, at(0)).begun(Cause.KEY, at(10)).begun(Cause.KEY, at(30)).read(at(31))
    assert found.streak == 3
    later = found.begun(Cause.KEY, at(31 + PEACE_SECONDS))
    assert later.streak == 1


def test_a_table_rests_for_a_multiple_of_what_its_snapshot_took() -> None:
    found = Resyncs().begun(Cause.REWRITE, at(0)).read(at(1000))
    assert found.next_at(T0 + timedelta(seconds=1000)) == T0 + timedelta(seconds=1000 + REST * 1000)


def test_what_an_operator_asks_for_is_counted_and_makes_nobody_wait() -> None:
    found = Resyncs().begun(Cause.REQUEST, at(0)).begun(Cause.REQUEST, at(1))
    assert found.counts == {"request": 2}
    assert found.next_at(T0) == T0


def test_a_clock_that_was_set_back_makes_no_table_wait() -> None:
    found = Resyncs().begun(Cause.REWRITE, at(1e9)).begun(Cause.REWRITE, at(1e9))
    assert found.next_at(T0) == T0
    while_read = Resyncs().begun(Cause.REWRITE, at(0)).read(at(1e6))
    assert while_read.next_at(T0 + timedelta(seconds=60)) == T0 + timedelta(seconds=60)


@pytest.mark.parametrize("cause", [Cause.GAP, Cause.UNREADABLE])
def test_what_another_snapshot_does_not_fix_is_left_to_people(cause: Cause) -> None:
    assert not cause.heals
