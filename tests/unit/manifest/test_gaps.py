"""What a lost slot makes of tables, and what makes them live again."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.entries import Changes, Commits, Lost, Prepared, PreparedEnd
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.manifest.state import from_json, to_json
from sluice.manifest.values import PipelineState
from tests.support.manifests import changes, follow, opened, repair, segment, snapshot, started, table


def live() -> PipelineState:
    state, _ = follow(started(), snapshot())
    return follow(state, changes(30), through_lsn=30)[0]


def lose(state: PipelineState, to_lsn: int, *repairable: str) -> PipelineState:
    return follow(state, opened(lost=Lost("the slot was lost", repairable)), through_lsn=to_lsn)[0]


def closing(state: PipelineState, as_of_lsn: int, **other: Any) -> Any:
    gap = state.tables["7"].gaps[-1]
    return repair(as_of_lsn=as_of_lsn, through_lsn=state.through_lsn, **{"gap_seq": gap.seq, **other})


def test_a_gap_is_said_by_the_entry_that_passes_it_and_closed_by_rows_from_behind_it() -> None:
    lost = lose(live(), 100, "7")
    assert (lost.through_lsn, lost.tables["7"].state) == (100, "gap")
    later, _ = follow(lost, changes(110, 130), through_lsn=130)
    closed, entry = follow(later, closing(later, 120))
    known = closed.tables["7"]
    assert (known.state, known.reason, known.gap) == ("live", "", None)
    before, after = known.gaps[-1].seq - 1, known.gaps[-1].seq + 1
    assert (known.after_lsn(before), known.after_lsn(known.gaps[-1].seq), known.after_lsn(after)) == (10, 10, 120)
    assert known.gaps[-1].segments == entry.body.segments  # type: ignore[union-attr]
    assert from_json(to_json(closed)) == closed


@pytest.mark.parametrize(
    "wrong",
    [
        {"gap_seq": 3},
        {"generation": 2},
        {"schema_version": 2},
        {"as_of_lsn": 99, "segments": (segment(first_lsn=99),)},
        {"as_of_lsn": 140, "segments": (segment(first_lsn=140),)},
        {"unchanged_through_lsn": 100},
    ],
)
def test_rows_that_do_not_close_the_gap_are_refused(wrong: dict[str, Any]) -> None:
    state, _ = follow(lose(live(), 100, "7"), changes(110, 130), through_lsn=130)
    right = closing(state, 120)
    follow(state, right)
    with pytest.raises(ManifestCorrupt, match="repair"):
        follow(state, replace(right, **wrong))


def test_a_gap_is_closed_once_and_never_by_a_step_of_the_table() -> None:
    state = lose(live(), 100, "7")
    for made in ("live", "pending"):
        with pytest.raises(ManifestCorrupt, match="gap is open"):
            follow(state, table(state=made, version=None))
    closed, _ = follow(state, closing(state, 100))
    with pytest.raises(ManifestCorrupt, match="repairs table 7"):
        follow(closed, closing(state, 100))
    with pytest.raises(ManifestCorrupt, match="not live"):
        follow(state, repair(as_of_lsn=50, through_lsn=100))


def test_a_slot_lost_again_while_a_gap_is_open_asks_for_rows_from_behind_the_second_loss() -> None:
    once, _ = follow(lose(live(), 100, "7"), changes(110), through_lsn=120)
    twice = lose(once, 200, "7")
    assert [(gap.from_lsn, gap.to_lsn) for gap in twice.tables["7"].gaps] == [(30, 200)]
    with pytest.raises(ManifestCorrupt, match="lost"):
        follow(twice, closing(twice, 150))
    closed, _ = follow(twice, closing(twice, 200))
    again = lose(closed, 300, "7").tables["7"].gaps
    assert [gap.closed for gap in again] == [True, False]


def test_tables_that_cannot_be_compared_are_stale_and_those_not_followed_are_left_alone() -> None:
    pending, _ = follow(live(), table(state="pending", version=None))
    reading, _ = follow(started(), snapshot(final=False))
    gone, _ = follow(live(), table(state="detached", version=None))
    waiting = started()
    for before, state, by_itself in (
        (live(), State.STALE, False),
        (pending, State.STALE, True),
        (reading, State.STALE, True),
        (gone, State.DETACHED, False),
        (waiting, State.SNAPSHOT, False),
    ):
        now = lose(before, 100).tables["7"]
        assert (now.state, bool(now.resync_at)) == (state, by_itself)


def test_a_new_generation_has_no_gap_and_prepared_transactions_are_over() -> None:
    prepared = Prepared("g", 5, 40, 0, 0)
    state, _ = follow(live(), Changes((), Commits(), prepared=(prepared,)), through_lsn=40)
    lost = lose(state, 100, "7")
    assert lost.prepared == {}
    with pytest.raises(ManifestCorrupt, match="not open"):
        follow(lost, Changes((), Commits(), ended=(PreparedEnd("g", 40, "committed"),)), through_lsn=110)
    begun, _ = follow(lost, table(generation=2, version=None))
    assert (begun.tables["7"].gaps, begun.tables["7"].state) == ((), "snapshot")
