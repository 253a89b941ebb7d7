"""The reducer accepts what may follow and names what may not."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract.chunks import BlockRange
from sluice.contract.entries import Changes, Commits, Fork, Opened, Progress, Segment, Snapshot
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt
from sluice.manifest.state import MOVING, from_json, reduce, to_json
from sluice.manifest.values import Pause, PipelineState
from tests.support.extent import FULL
from tests.support.manifests import (
    WRITTEN_AT,
    changes,
    follow,
    histories,
    opened,
    repair,
    schema,
    segment,
    snapshot,
    started,
    table,
)

LATER = 100


def commits(*lsns: int, of: tuple[Segment, ...] = ()) -> Changes:
    return Changes(of, Commits(list(lsns), [0] * len(lsns), [1] * len(lsns)))


def from_to(first_lsn: int, last_lsn: int) -> Changes:
    """A segment of these positions with a commit at 20."""
    return commits(20, of=(segment(first_lsn=first_lsn, last_lsn=last_lsn),))


OTHER_ROWS = replace(snapshot(), segments=(segment("8", first_lsn=1),))
OTHER_NAME = replace(schema(), table_name="other")
MOVES: dict[str, Any] = {"through_lsn": LATER}
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "a number twice": (Progress, {"seq": 2}, "entry 3 calls itself 2"),
    "a gap": (Progress, {"seq": 4}, "entry 3 calls itself 4"),
    "another chain": (Progress, {"previous_sha256": "0" * 64}, "entry 3 does not continue entry 2"),
    "an older epoch": (Progress, {"epoch": 0}, "epoch 0"),
    "an epoch that nobody opened": (Progress, {"epoch": 2}, "epoch 2"),
    "the same epoch opened again": (opened, {"epoch": 1}, "opens epoch 1"),
    "an epoch left out": (opened, {"epoch": 3}, "opens epoch 3"),
    "a position that goes back": (Progress, {"through_lsn": 9}, "goes back"),
    "changes behind some that were left out": (lambda: changes(20), {"from_lsn": 15}, "from 0/F, but what .* at 0/A"),
    "an advance behind some that were left out": (Progress, {"from_lsn": 15}, "continues from 0/F"),
    "an entry from before the last one's end": (lambda: changes(20), {"from_lsn": 9}, "continues from 0/9"),
    "a position that a table's entry moves": (lambda: table(version=None), MOVES, "of kind table moves the position"),
    "a position that a later opening moves": (opened, MOVES, "of kind opened moves the position"),
    "an unknown table": (lambda: changes(20, table_id="8"), {}, "unknown table 8"),
    "an unknown schema version": (lambda: changes(20, version=2), {}, "unknown schema version 2"),
    "a transaction that is stored already": (lambda: changes(10, 20), {}, "own range"),
    "a transaction beyond the declared end": (lambda: changes(20, LATER + 1), {}, "own range"),
    "commits without segments that are stored already": (lambda: commits(10), {}, "own range"),
    "a segment outside the entry": (lambda: from_to(10, 10), {}, "table 7 outside"),
    "a segment that ends before it begins": (lambda: from_to(30, 20), {}, "table 7 outside"),
    "transactions out of order": (lambda: commits(30, 20, 40), {}, "out of commit order"),
    "a transaction twice": (lambda: commits(20, 20), {}, "out of commit order"),
    "an older generation": (lambda: table(generation=0, version=None), {}, "generation 1 to 0"),
    "a schema version left out": (lambda: table(version=3), {}, "schema version 3"),
    "a schema version with another content": (lambda: table(schema=OTHER_NAME), {}, "schema version 1"),
    "a schema of another table": (lambda: table(schema=replace(schema("8"), version=2)), {}, "schema version 2"),
    "a state that no entry can give": (lambda: table(state="paused"), {}, "state paused"),
    "a snapshot of an unknown table": (lambda: snapshot("8"), {}, "table 8"),
    "a snapshot of another generation": (lambda: snapshot(generation=2), {}, "generation 2"),
    "a snapshot in an unknown schema version": (lambda: snapshot(version=2), {}, "table 7"),
    "a snapshot with rows of another table": (lambda: OTHER_ROWS, {}, "mixes rows of table 8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_follow_is_refused_by_number_and_changes_nothing(case: str) -> None:
    body, fields, message = REFUSED[case]
    state = started()
    before, made = json.dumps(to_json(state)), body()
    with pytest.raises(ManifestCorrupt, match=message) as raised:
        follow(state, made, **{"through_lsn": LATER if isinstance(made, MOVING) else None, **fields})
    assert "entry 3" in str(raised.value)
    assert json.dumps(to_json(state)) == before


def test_nothing_but_an_opening_begins_a_manifest() -> None:
    for body in (Progress(), table()):
        with pytest.raises(ManifestCorrupt, match="entry 1"):
            follow(PipelineState(), body)


def test_a_snapshot_is_counted_until_it_is_final_and_then_closed() -> None:
    state, _ = follow(started(), snapshot(final=False))
    state, _ = follow(state, snapshot(final=False))
    found = state.tables["7"].snapshot
    assert found is not None
    assert (found.segments, found.rows, found.final) == (2, 6, False)
    for other in (snapshot(snapshot_lsn=11), snapshot(generation=2)):
        with pytest.raises(ManifestCorrupt):
            follow(state, other)
    state, _ = follow(state, snapshot())
    found = state.tables["7"].snapshot
    assert found is not None
    assert found.final
    with pytest.raises(ManifestCorrupt, match="finished"):
        follow(state, snapshot())


def test_a_new_generation_forgets_the_snapshot_and_keeps_the_schemas() -> None:
    state, _ = follow(started(), snapshot())
    state, _ = follow(state, table(state="stale", version=None, reason="rewritten", relfilenode=0, fingerprint=""))
    known = state.tables["7"]
    assert (known.generation_seq, known.reason, known.relfilenode, known.fingerprint) == (2, "rewritten", 1, "f")
    assert known.snapshot is not None
    state, begun = follow(state, table(generation=2, version=2, relfilenode=9))
    known = state.tables["7"]
    assert (known.generation, known.generation_seq, known.snapshot) == (2, begun.seq, None)
    assert (sorted(known.schemas), known.relfilenode) == ([1, 2], 9)


def test_a_new_shape_moves_its_own_position_and_not_that_of_the_snapshot() -> None:
    """What committed at or before the table's position is taken to be in the snapshot."""
    state, _ = follow(started(), table(state="live", version=None, lsn=20))
    state, _ = follow(state, table(state="live", version=2, lsn=40))
    assert (state.tables["7"].lsn, state.tables["7"].schema_lsn) == (20, 40)
    state, _ = follow(state, table(state="stale", version=None, lsn=50))
    assert (state.tables["7"].lsn, state.tables["7"].schema_lsn) == (50, 40)
    state, _ = follow(state, table(generation=2, version=None, lsn=60))
    assert (state.tables["7"].lsn, state.tables["7"].schema_lsn) == (60, 0)


def _states(history: list[tuple[Any, int]]) -> list[PipelineState]:
    states = [PipelineState()]
    for body, through_lsn in history:
        states.append(follow(states[-1], body, through_lsn=through_lsn)[0])
    return states


@settings(max_examples=100 if FULL else 35)
@given(history=histories(), data=st.data())
def test_going_on_from_any_stored_state_equals_going_on_from_the_beginning(
    history: list[tuple[Any, int]], data: st.DataObject
) -> None:
    states = _states(history)
    at = data.draw(st.integers(0, len(history)))
    state = from_json(json.loads(json.dumps(to_json(states[at]))))
    assert state == states[at]
    for body, through_lsn in history[at:]:
        state, _ = follow(state, body, through_lsn=through_lsn)
    assert state == states[-1]


@settings(max_examples=60 if FULL else 25, deadline=None)
@given(history=histories(most=10), data=st.data())
def test_a_state_with_a_field_missing_is_corrupt(history: list[tuple[Any, int]], data: st.DataObject) -> None:
    value = to_json(_states(history)[-1])
    tables = sorted(value["tables"])
    place = value if not tables or data.draw(st.booleans()) else value["tables"][data.draw(st.sampled_from(tables))]
    del place[data.draw(st.sampled_from(sorted(place)))]
    with pytest.raises(ManifestCorrupt):
        from_json(value)


def test_the_next_link_must_carry_the_digest_that_was_stored() -> None:
    after, entry = follow(started(), Progress())
    _, following = follow(after, Progress())
    with pytest.raises(ManifestCorrupt, match="entry 4 does not continue entry 3"):
        reduce(reduce(started(), entry, "0" * 64), following, "")


REPAIRS_REFUSED: dict[str, dict[str, Any]] = {
    "of rows from before the snapshot": {"as_of_lsn": 10},
    "that the manifest has not come to": {"as_of_lsn": 40},
    "that was true at another place": {"through_lsn": 25},
    "of another generation": {"generation": 2},
    "in another shape": {"schema_version": 2},
    "of an unknown table": {"table_id": "8"},
    "with rows of another position": {"segments": (segment(first_lsn=19),)},
    "with rows of another table": {"segments": (segment("8", first_lsn=20),)},
}


def _live(through_lsn: int) -> PipelineState:
    state, _ = follow(started(), snapshot())
    return follow(state, changes(through_lsn), through_lsn=through_lsn)[0]


def test_a_repair_stands_where_its_rows_are_known_to_be_unchanged() -> None:
    state = _live(30)
    after, entry = follow(state, repair(as_of_lsn=20, through_lsn=30))
    assert (entry.from_lsn, after.through_lsn) == (30, 30)
    assert after.tables == state.tables


@pytest.mark.parametrize("case", REPAIRS_REFUSED)
def test_a_repair_is_refused(case: str) -> None:
    wrong = {"as_of_lsn": 20, "through_lsn": 30, **REPAIRS_REFUSED[case]}
    with pytest.raises(ManifestCorrupt, match="entry 5"):
        follow(_live(30), repair(**wrong))


def test_a_table_that_is_not_live_is_not_repaired() -> None:
    for state in (started(), follow(_live(30), table(state="stale", version=None))[0]):
        with pytest.raises(ManifestCorrupt, match="not live"):
            follow(state, repair(as_of_lsn=20, through_lsn=state.through_lsn))


def _after(state: PipelineState, *bodies: Any) -> PipelineState:
    for body in bodies:
        through_lsn = body.commits.end_lsn[-1] if isinstance(body, Changes) else state.through_lsn
        state, _ = follow(state, body, through_lsn=through_lsn)
    return state


def test_a_pause_outlasts_every_other_step_of_the_table_and_counts_what_waits() -> None:
    state = _after(started(), table())
    paused = _after(state, table(version=None, paused=True))
    known = paused.tables["7"]
    assert known.paused == Pause(WRITTEN_AT)
    assert (known.is_applied, known.state) == (False, state.tables["7"].state)
    paused = _after(paused, changes(20), table(version=2), table(version=None, state="stale", reason="r"))
    assert paused.tables["7"].paused == Pause(WRITTEN_AT, rows=3, bytes=100)
    again = _after(paused, table(generation=2, version=None), snapshot(generation=2, version=2))
    assert again.tables["7"].paused == Pause(WRITTEN_AT, rows=3, bytes=100), "what was read anew waits, and no more"
    assert from_json(json.loads(json.dumps(to_json(again)))) == again
    resumed = _after(again, table(generation=2, version=None, state="live", paused=False))
    assert resumed.tables["7"].is_applied


def test_a_pause_ends_when_its_table_leaves() -> None:
    gone = _after(started(), table(), table(version=None, paused=True), table(version=None, state="detached"))
    assert gone.tables["7"].paused is None
    assert _after(gone, table(generation=2, version=None)).tables["7"].is_applied


def _forgotten() -> PipelineState:
    left = table(version=None, state="detached", reason="dropped", fingerprint="x" * 500)
    return _after(started(), snapshot(), table(version=2), left, replace(left, why=None, fingerprint=""))


def test_of_a_forgotten_table_a_remainder_is_left_that_no_entry_can_refer_to() -> None:
    state = _forgotten()
    known = state.tables["7"]
    assert known.is_forgotten
    assert (known.schemas, known.snapshot, known.fingerprint, known.resyncs.counts) == ({}, None, "", {})
    assert from_json(json.loads(json.dumps(to_json(state)))) == state
    again = _after(state, replace(table(version=None, state="detached"), table_name="other"))
    assert again.tables["7"].is_forgotten, "said once more, as under another name, changes nothing of that"
    for late in (changes(LATER), snapshot()):
        with pytest.raises(ManifestCorrupt, match="entry 7"):
            follow(state, late, through_lsn=LATER if isinstance(late, MOVING) else None)


def test_an_id_that_comes_back_goes_on_with_the_next_generation_and_version() -> None:
    state = _forgotten()
    for wrong in (table(generation=1, version=1), table(generation=2, version=2)):
        with pytest.raises(ManifestCorrupt, match="introduces schema version"):
            follow(state, wrong)
    back = _after(state, table(generation=2, version=3), snapshot(generation=2, version=3)).tables["7"]
    assert (back.state, sorted(back.schemas), back.generation) == (State.LIVE, [3], 2)


def test_a_table_that_left_is_not_forgotten_by_leaving_nor_while_it_says_why() -> None:
    left = _after(started(), table(version=None, state="detached", reason="dropped"))
    renamed = _after(left, replace(table(version=None, state="detached", reason="dropped"), table_name="new"))
    assert sorted(renamed.tables["7"].schemas) == [1]


FACTS = '{"publishes": "iudt"}'


def chunk(lsn: int, *ranges: tuple[int, int], final: bool = False, first: bool = False) -> Snapshot:
    relations, blocks = ("7",) if first else (), tuple(BlockRange("7", *one) for one in ranges)
    return Snapshot("7", 1, 1, lsn, (), final, 1, FACTS, relations=relations, ranges=blocks)


def read_twice(state: PipelineState, *, first_lsn: int = 10, between: int | None = None) -> PipelineState:
    """Every block in chunks at `first_lsn` and 20; `between` them a change that lacks a value."""
    state, _ = follow(state, chunk(first_lsn, (0, 5), first=True))
    if between is not None:
        state, _ = follow(state, sent_in_part(between), through_lsn=between)
    state, _ = follow(state, chunk(20, (5, 0)))
    return follow(state, Progress(), through_lsn=30)[0]


def test_chunks_of_two_moments_are_final_as_of_the_later_one() -> None:
    state, _ = follow(read_twice(started()), chunk(20, final=True))
    table = state.tables["7"]
    assert table.snapshot is not None
    assert (table.state, table.lsn, table.snapshot.first_lsn, table.snapshot.snapshot_lsn) == ("live", 20, 10, 20)


WRONG_CHUNKS: dict[str, tuple[str, list[Any]]] = {
    "a block that was read": ("two ranges", [chunk(10, (4, 8))]),
    "a relation that is not read": ("does not read", [replace(chunk(10), ranges=(BlockRange("8", 0, 0),))]),
    "an older moment": ("later moment", [chunk(9, (5, 0))]),
    "an end without all blocks": ("were not read", [chunk(10, final=True)]),
    "an end before the changes are there": ("before the changes", [chunk(10**9, (5, 0)), chunk(10**9, final=True)]),
}


@pytest.mark.parametrize("wrong", WRONG_CHUNKS)
def test_a_chunk_that_cannot_follow_is_refused(wrong: str) -> None:
    message, bodies = WRONG_CHUNKS[wrong]
    state, _ = follow(started(), chunk(10, (0, 5), first=True))
    for body in bodies[:-1]:
        state, _ = follow(state, body)
    with pytest.raises(ManifestCorrupt, match=message):
        follow(state, bodies[-1])


def sent_in_part(lsn: int) -> Changes:
    return commits(lsn, of=(segment(first_lsn=lsn),))


@pytest.mark.parametrize(("lsn", "counts"), [(15, True), (25, False)])
def test_a_change_without_all_its_values_between_two_chunks_keeps_them_apart(lsn: int, counts: bool) -> None:
    """The segment says that a value was not sent; one behind the last chunk does no harm."""
    state = read_twice(started(), between=lsn)
    if counts:
        with pytest.raises(ManifestCorrupt, match="without all its values"):
            follow(state, chunk(20, final=True))
    else:
        assert follow(state, chunk(20, final=True))[0].tables["7"].state == "live"


def test_a_change_without_all_its_values_counts_before_the_first_chunk_is_there() -> None:
    state = read_twice(follow(started(), sent_in_part(15), through_lsn=15)[0], first_lsn=12)
    with pytest.raises(ManifestCorrupt, match="without all its values"):
        follow(state, chunk(20, final=True))


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (opened(), opened(timeline=2), "another timeline"),
        (opened(), opened(), ""),
        (opened(), opened(origin="none"), "leaves out changes"),
        (opened(origin="none"), opened(origin="none"), "leaves out changes"),
        (opened(origin="none"), opened(), "leaves out changes"),
    ],
)
def test_a_chunk_of_a_later_moment_is_refused_once_changes_may_be_missing(
    first: Opened, then: Opened, said: str
) -> None:
    state, _ = follow(PipelineState(), first, through_lsn=10)
    state, _ = follow(state, table())
    state, _ = follow(state, chunk(10, (0, 5), first=True))
    state, _ = follow(state, then)
    if said:
        with pytest.raises(ManifestCorrupt, match=said):
            follow(state, chunk(20, (5, 0)))
    else:
        follow(state, chunk(20, (5, 0)))


@pytest.mark.parametrize(("fork", "state"), [(9, State.STALE), (10, State.LIVE), (11, State.LIVE)])
def test_a_snapshot_from_past_a_promotion_makes_its_table_stale(fork: int, state: State) -> None:
    """Its rows may be those of transactions that only the server from before had."""
    read, _ = follow(_after(started(), table()), snapshot())
    after, _ = follow(read, opened(timeline=2, forks=(Fork(1, fork),)))
    assert after.tables["7"].state == state


@pytest.mark.parametrize(
    ("before", "then"),
    [(opened(), opened(timeline=2, forks=(Fork(1, 9),))), (opened(origin="none"), opened())],
    ids=["promoted", "every origin asked for"],
)
def test_a_table_that_an_opening_turns_stale_is_stale_since_then(before: Opened, then: Opened) -> None:
    state, _ = follow(PipelineState(), before, through_lsn=10)
    live = _after(state, table(), snapshot())
    later = "2031-01-01T00:00:00+00:00"
    found = follow(live, then, written_at=later)[0].tables["7"]
    assert (found.state, found.since) == (State.STALE, later)


def test_a_chunk_of_a_snapshot_ends_what_was_said_of_why_it_could_not_be_taken() -> None:
    waits = _after(started(), table(version=None, reason="its snapshot cannot be taken"))
    assert waits.tables["7"].reason
    read = _after(waits, snapshot(final=False))
    assert (read.tables["7"].state, read.tables["7"].reason) == ("snapshot", "")
