"""The reducer accepts what may follow and names what may not."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract.entries import Changes, Commits, Progress
from sluice.errors import ManifestCorrupt
from sluice.manifest.state import MOVING, PipelineState, from_json, reduce, to_json
from tests.support.manifests import changes, copy, follow, histories, opened, schema, segment, started, table

LATER = 100

REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "a number twice": (Progress, {"seq": 2}, "entry 3 calls itself 2"),
    "a gap": (Progress, {"seq": 4}, "entry 3 calls itself 4"),
    "another chain": (Progress, {"previous_sha256": "0" * 64}, "entry 3 does not continue entry 2"),
    "an older epoch": (Progress, {"epoch": 0}, "epoch 0"),
    "an epoch that nobody opened": (Progress, {"epoch": 2}, "epoch 2"),
    "the same epoch opened again": (opened, {"epoch": 1}, "opens epoch 1"),
    "an epoch left out": (opened, {"epoch": 3}, "opens epoch 3"),
    "a position that goes back": (Progress, {"through_lsn": 9}, "goes back"),
    "changes behind some that were left out": (
        lambda: changes(20),
        {"from_lsn": 15},
        "continues from 0/F, but what came before it ends at 0/A",
    ),
    "an advance behind some that were left out": (Progress, {"from_lsn": 15}, "continues from 0/F"),
    "an entry from before the last one's end": (lambda: changes(20), {"from_lsn": 9}, "continues from 0/9"),
    "a position that a table's entry moves": (
        lambda: table(version=None),
        {"through_lsn": LATER},
        "of kind table moves the position",
    ),
    "a position that a later opening moves": (opened, {"through_lsn": LATER}, "of kind opened moves the position"),
    "an unknown table": (lambda: changes(20, table_id="8"), {}, "unknown table 8"),
    "an unknown schema version": (lambda: changes(20, version=2), {}, "unknown schema version 2"),
    "a transaction that is stored already": (lambda: changes(10, 20), {}, "own range"),
    "a transaction beyond the declared end": (lambda: changes(20, LATER + 1), {}, "own range"),
    "commits without segments that are stored already": (lambda: Changes((), Commits([10], [0], [1])), {}, "own range"),
    "a segment outside the entry": (
        lambda: Changes((segment(first_lsn=10),), Commits([20], [0], [1])),
        {},
        "table 7 outside",
    ),
    "a segment that ends before it begins": (
        lambda: Changes((segment(first_lsn=30, last_lsn=20),), Commits([20], [0], [1])),
        {},
        "table 7 outside",
    ),
    "transactions out of order": (
        lambda: Changes((), Commits([30, 20, 40], [0] * 3, [1] * 3)),
        {},
        "out of commit order",
    ),
    "a transaction twice": (lambda: Changes((), Commits([20, 20], [0] * 2, [1] * 2)), {}, "out of commit order"),
    "an older generation": (lambda: table(generation=0, version=None), {}, "generation 1 to 0"),
    "a schema version left out": (lambda: table(version=3), {}, "schema version 3"),
    "a schema version with another content": (
        lambda: table(schema=replace(schema(), table_name="other")),
        {},
        "schema version 1",
    ),
    "a schema of another table": (lambda: table(schema=replace(schema("8"), version=2)), {}, "schema version 2"),
    "a snapshot of an unknown table": (lambda: copy("8"), {}, "table 8"),
    "a snapshot of another generation": (lambda: copy(generation=2), {}, "generation 2"),
    "a snapshot in an unknown schema version": (lambda: copy(version=2), {}, "table 7"),
    "a snapshot with rows of another table": (
        lambda: replace(copy(), segments=(segment("8", first_lsn=1),)),
        {},
        "mixes rows of table 8",
    ),
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
    state, _ = follow(started(), copy(final=False))
    state, _ = follow(state, copy(final=False))
    found = state.tables["7"].snapshot
    assert found is not None
    assert (found.segments, found.rows, found.final) == (2, 6, False)
    for other in (copy(snapshot_lsn=11), copy(generation=2)):
        with pytest.raises(ManifestCorrupt):
            follow(state, other)
    state, _ = follow(state, copy())
    found = state.tables["7"].snapshot
    assert found is not None
    assert found.final
    with pytest.raises(ManifestCorrupt, match="finished"):
        follow(state, copy())


def test_a_new_generation_forgets_the_snapshot_and_keeps_the_schemas() -> None:
    state, _ = follow(started(), copy())
    state, _ = follow(state, table(state="stale", version=None, reason="rewritten", relfilenode=0, fingerprint=""))
    known = state.tables["7"]
    assert (known.generation_seq, known.reason, known.relfilenode, known.fingerprint) == (2, "rewritten", 1, "f")
    assert known.snapshot is not None
    state, begun = follow(state, table(generation=2, version=2, relfilenode=9))
    known = state.tables["7"]
    assert (known.generation, known.generation_seq, known.snapshot, sorted(known.schemas), known.relfilenode) == (
        2,
        begun.seq,
        None,
        [1, 2],
        9,
    )


def test_a_new_shape_moves_its_own_position_and_not_that_of_the_snapshot() -> None:
    """What committed at or before the table's position is taken for copied, so a later shape must
    not push it forward.
    """
    state, _ = follow(started(), table(state="live", version=None, lsn=20))
    state, _ = follow(state, table(state="live", version=2, lsn=40))
    assert (state.tables["7"].lsn, state.tables["7"].schema_lsn) == (20, 40)
    state, _ = follow(state, table(state="stale", version=None, lsn=50))
    assert (state.tables["7"].lsn, state.tables["7"].schema_lsn) == (50, 40)
    state, _ = follow(state, table(generation=2, version=None, lsn=60))
    assert (state.tables["7"].lsn, state.tables["7"].schema_lsn) == (60, 0)


def test_a_schema_version_said_again_in_the_same_words_is_accepted() -> None:
    state, _ = follow(started(), table())
    assert sorted(state.tables["7"].schemas) == [1]


def _states(history: list[tuple[Any, int]]) -> list[PipelineState]:
    states = [PipelineState()]
    for body, through_lsn in history:
        states.append(follow(states[-1], body, through_lsn=through_lsn)[0])
    return states


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=60, deadline=None)
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
