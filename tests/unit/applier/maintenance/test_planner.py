"""Maintenance stays within its share, never runs while the pipeline is behind, and no table waits for ever."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_spark.maintenance import planner as bounds
from sluice_spark.maintenance.planner import FileCounts, Join, TableFacts, Turn, Turns, worth_doing

DAY = bounds.DAY
WEEK = 7 * DAY
AT_10 = {"version": 10, "tidied_version": 10, "vacuumed_version": 10}
QUIET = TableFacts("t", direct=False, retention_seconds=WEEK, vacuumed_seconds=0.0, settled=False, **AT_10)
CLEAN = FileCounts(files=1, below=(1, 1, 1), sparse=0, bytes=1000, rows=100, removed=0)
TIDY = ("t", Turn.TIDY)


def untidy(times: float = 1, name: str = "t") -> TableFacts:
    """A table that needs to be tidied so many times over."""
    return replace(QUIET, table_id=name, version=10 + int(times * bounds.VERSIONS))


def rested(share: float = 1.0) -> tuple[Turns, float]:
    """One that may begin at once, and the time."""
    planner = Turns(share)
    assert planner.choose([], waiting={}, now=0.0) is None
    return planner, 2 * bounds.START_DEBT_SECONDS / share


@given(
    share=st.floats(0.01, 1.0),
    steps=st.lists(
        st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 500.0), st.sampled_from(["done", "failed", "put_off"])),
        max_size=60,
    ),
)
def test_the_time_spent_never_exceeds_the_share_by_more_than_one_task(
    share: float, steps: list[tuple[float, float, str]]
) -> None:
    planner, now, spent = Turns(share), 0.0, 0.0
    for pause, cost, outcome in steps:
        now += pause
        if planner.choose([untidy()], waiting={}, now=now) is None:
            continue
        assert spent <= share * now
        now += cost
        spent += cost
        getattr(planner, outcome)(TIDY, seconds=cost, now=now)


@given(late=st.floats(bounds.BEHIND_SECONDS * 1.01, float("inf")), times=st.floats(1, 1000))
def test_nothing_begins_while_a_window_has_been_due_for_long(late: float, times: float) -> None:
    planner, now = rested()
    assert planner.choose([untidy(times)], waiting={"other": late}, now=now) is None


@given(
    needs=st.lists(st.integers(1, 100), min_size=1, max_size=12),
    outcomes=st.lists(st.sampled_from(["done", "failed", "put_off"]), min_size=40, max_size=40),
)
def test_every_table_that_needs_a_turn_gets_one_before_another_gets_its_second(
    needs: list[int], outcomes: list[str]
) -> None:
    """All of them need both turns all the time, some of them much more than others."""
    tables = [
        replace(untidy(need, f"t{number}"), vacuumed_seconds=need * WEEK, vacuumed_version=0)
        for number, need in enumerate(needs)
    ]
    planner, now = rested()
    planner.budget.credit = float("inf")
    order: list[tuple[str, Turn]] = []
    for outcome in outcomes:
        now += bounds.LONGEST_WAIT_SECONDS
        planner.budget.credit = 0.0
        chosen = planner.choose(tables, waiting={}, now=now)
        assert chosen is not None
        order.append((chosen[0].table_id, chosen[1]))
        getattr(planner, outcome)(order[-1], seconds=1.0, now=now)
    each = len(tables) * len(Turn)
    for at in range(0, len(order) - each, each):
        assert len(set(order[at : at + each])) == each


def test_a_window_that_is_due_comes_first_unless_the_table_needs_its_turn_badly() -> None:
    planner, now = rested()
    due = {"other": 1.0}
    assert planner.choose([untidy(bounds.PRESSING - 1)], waiting=due, now=now) is None
    assert planner.choose([untidy(bounds.PRESSING)], waiting=due, now=now) is not None
    assert planner.choose([untidy(1)], waiting={}, now=now) is not None


def test_a_share_of_nothing_switches_maintenance_off_and_time_saves_up_only_so_much() -> None:
    planner = Turns(0.0)
    assert all(planner.choose([untidy(9)], waiting={}, now=now) is None for now in (0.0, 1e9))
    planner, _ = rested()
    planner.choose([], waiting={}, now=1e9)
    assert planner.budget.credit == bounds.SAVED_SECONDS


def test_a_process_that_is_restarted_again_and_again_maintains_nothing() -> None:
    assert Turns(0.05).choose([untidy(9)], waiting={}, now=1e6) is None


def test_a_turn_that_fails_comes_again_after_pauses_that_grow_to_a_bound() -> None:
    planner, now = rested()
    pauses = []
    for _ in range(12):
        planner.failed(TIDY, seconds=0.0, now=now)
        pause = bounds.FIRST_WAIT_SECONDS
        while planner.choose([untidy()], waiting={}, now=now + pause) is None:
            pause *= 2
        pauses.append(min(pause, bounds.LONGEST_WAIT_SECONDS))
        now += pause
    assert pauses[0] == bounds.FIRST_WAIT_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == bounds.LONGEST_WAIT_SECONDS
    planner.done(TIDY, seconds=0.0, now=now)
    assert planner.choose([untidy()], waiting={}, now=now) is not None


def test_windows_that_wait_call_a_turn_off_and_wait_longer_the_next_time() -> None:
    planner, now = rested()

    def is_late(waited: float) -> bool:
        return planner.is_late(TIDY, began=now, waiting={"other": 1e9}, now=now + waited)

    assert not planner.is_late(TIDY, began=now, waiting={}, now=now + 1e6)
    assert not is_late(bounds.PATIENCE_SECONDS)
    assert is_late(bounds.PATIENCE_SECONDS + 1)
    planner.put_off(TIDY, seconds=bounds.PATIENCE_SECONDS, now=now)
    assert not is_late(bounds.PATIENCE_SECONDS + 1)
    for _ in range(9):
        planner.put_off(TIDY, seconds=bounds.PATIENCE_SECONDS, now=now)
    assert is_late(bounds.LONGEST_PATIENCE_SECONDS + 1)


def test_tables_are_tidied_by_their_new_versions_and_vacuumed_by_the_time() -> None:
    assert replace(QUIET, version=10 + bounds.VERSIONS).need(Turn.TIDY) == 1
    assert replace(QUIET, version=10 + bounds.DIRECT_VERSIONS, direct=True).need(Turn.TIDY) == 1
    assert replace(QUIET, version=9 + bounds.DIRECT_VERSIONS, direct=True).need(Turn.TIDY) < 1
    changed = replace(QUIET, version=11)
    assert replace(changed, vacuumed_seconds=DAY).need(Turn.VACUUM) == 1
    assert replace(changed, vacuumed_seconds=3600.0, retention_seconds=3600.0).need(Turn.VACUUM) == 1
    assert replace(changed, vacuumed_seconds=9 * WEEK, retention_seconds=None).need(Turn.VACUUM) == 0


def test_a_table_at_rest_is_vacuumed_once_more_when_all_it_left_has_expired() -> None:
    assert replace(QUIET, vacuumed_seconds=6 * DAY).need(Turn.VACUUM) < 1
    assert replace(QUIET, vacuumed_seconds=WEEK).need(Turn.VACUUM) == 1
    assert replace(QUIET, vacuumed_seconds=WEEK, settled=True).need(Turn.VACUUM) == 0


@pytest.mark.parametrize(
    ("counts", "join", "purge"),
    [
        (CLEAN, None, False),
        (replace(CLEAN, below=(bounds.FILES_OF_A_TIER - 1,) * 3), None, False),
        (replace(CLEAN, below=(bounds.FILES_OF_A_TIER,) * 3), Join(bounds.TIERS[0]), False),
        (replace(CLEAN, below=(1, 2, bounds.FILES_OF_A_TIER)), Join(bounds.TIERS[2]), False),
        (replace(CLEAN, sparse=2, removed=9), Join(0), False),
        (replace(CLEAN, sparse=1, removed=9), None, False),
        (replace(CLEAN, sparse=3, removed=11), None, True),
        (replace(CLEAN, sparse=3, removed=11, bytes=bounds.PURGED_BYTES + 1), Join(0), False),
        (replace(CLEAN, rows=0, removed=0), None, False),
    ],
)
def test_files_are_rewritten_only_where_it_is_worth_it(counts: FileCounts, join: Join | None, *, purge: bool) -> None:
    done = worth_doing(counts)
    assert (done.join, done.purge) == (join, purge)
