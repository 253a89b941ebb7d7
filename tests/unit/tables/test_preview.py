"""What is planned is what is decided: on a copy, and as of the time when the stream has come to the catalog."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState
from sluice.tables.events import Configured
from sluice.tables.policies import Policies, TablePolicy
from sluice.tables.preview import Preview, Previews
from tests.unit.tables.test_life import ID, SEVEN, _state

VALUE = replace(ID, name="c2", attnum=2, in_primary_key=False, in_identity=False)
WIDER = replace(SEVEN, columns=(ID, VALUE), attributes=2)
REWRITTEN = replace(SEVEN, relfilenode=SEVEN.relfilenode + 1, columns=(replace(ID, xmin=ID.xmin + 1),))
RENAMED = replace(SEVEN, name="later")
UNREADABLE = replace(SEVEN, policies_apply=True)


def _planned(state: PipelineState, *facts: TableFacts, patterns: tuple[str, ...] = (), **policy: Any) -> Preview:
    configured = Configured(patterns, Policies(TablePolicy(**policy)))
    return Previews({one.oid: one for one in facts}, state, configured).of(7)


@pytest.mark.parametrize(
    ("facts", "policy", "planned"),
    [
        (WIDER, {"contract": "ignore_new"}, ("followed", "column c2 added and left out", "")),
        (WIDER, {"contract": "stop"}, ("stop", "its columns changed: added c2; `sluice resync`", "contract")),
        (REWRITTEN, {"on_change": "stop"}, ("stop", "values than were sent; `sluice resync`", "rewrite")),
        (RENAMED, {}, ("followed", "renamed from public.t7; its lake table stays at public/t7", "")),
        (RENAMED, {"on_rename": "move"}, ("snapshot", "renamed from public.t7; its lake table moves from", "rename")),
        (UNREADABLE, {}, ("stop", "row level security applies", "")),
    ],
)
def test_a_table_that_is_live_is_planned_as_it_would_be_decided(
    facts: TableFacts, policy: dict[str, Any], planned: tuple[str, str, str]
) -> None:
    found = _planned(_state(SEVEN), facts, **policy)
    assert (found.effect, found.cause) == (planned[0], planned[2])
    assert planned[1] in found.why


def test_a_table_joins_if_it_is_selected_and_can_be_carried_also_without_a_manifest() -> None:
    for state in (PipelineState(), _state()):
        assert _planned(state, SEVEN) == Preview("snapshot", "it joins")
        assert _planned(state, UNREADABLE).effect == "stop"
        assert _planned(state, SEVEN, patterns=("other.*",)) == Preview("nothing")
        assert _planned(state) == Preview("nothing")


def test_a_table_that_leaves_stops_and_one_that_has_left_changes_nothing_until_it_comes_back() -> None:
    live = _state(SEVEN)
    left = replace(live, tables={"7": replace(live.tables["7"], state=State.DETACHED)})
    assert _planned(live).why == "the publication no longer carries it: its lake table stays as it is"
    unselected = _planned(live, SEVEN, patterns=("other.*",))
    assert unselected == Preview("stop", "source.tables no longer selects it: its lake table stays as it is")
    assert _planned(left) == Preview("nothing")
    assert _planned(left, SEVEN) == Preview("snapshot", "it joins")


def test_a_stale_table_is_read_again_as_the_policy_of_today_says() -> None:
    live = _state(SEVEN)
    stale = replace(live.tables["7"], state=State.STALE, cause="rewrite", resync_at="2031-01-01T00:00:00+00:00")
    state = replace(live, tables={"7": stale})
    assert (_planned(state, SEVEN).effect, _planned(state, SEVEN).cause) == ("snapshot", "rewrite")
    assert _planned(state, SEVEN, on_change="stop").effect == "stop"


def test_a_table_that_waits_for_its_rows_is_planned_anew_when_its_columns_change() -> None:
    live = _state(SEVEN)
    waits = replace(live, tables={"7": replace(live.tables["7"], state=State.SNAPSHOT)})
    assert _planned(waits, SEVEN) == Preview("nothing")
    assert _planned(waits, WIDER) == Preview("snapshot", "column c2 added")
    assert _planned(waits, WIDER, contract="stop") == Preview("snapshot", "column c2 added")


def test_a_table_that_takes_the_name_of_another_one_is_planned_with_what_becomes_of_that_one() -> None:
    nine = replace(SEVEN, oid=9, name="t9")
    state = _state(SEVEN, nine)
    swapped = replace(SEVEN, name="t9"), replace(nine, name="t7")
    assert _planned(state, *swapped).effect == "followed"


def test_a_table_whose_rows_are_to_be_read_is_not_said_to_go_on_without_a_snapshot() -> None:
    live = _state(SEVEN)
    state = replace(live, tables={"7": replace(live.tables["7"], state=State.SNAPSHOT)})
    keyed = replace(WIDER, columns=(ID, replace(VALUE, in_primary_key=True, in_identity=True)))
    assert _planned(state, keyed) == Preview("snapshot", "column c2 added, rows identified by c1, c2")
