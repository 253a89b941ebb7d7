"""Why a table is in its state: codes are compared and sentences are shown."""

import ast
import string
from pathlib import Path

import pytest

from sluice.contract import codec, reasons
from sluice.contract.reasons import Reason, ReasonCode, sentence
from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State

ROOT = Path(__file__).parents[3]
SAID = {"reason", "problem", "failing", "failure", "stale_reason", "way_reason"}
"""Names of text that people read."""
MATCHERS = {"startswith", "endswith", "removeprefix", "removesuffix", "replace", "find", "index", "partition", "split"}
_TEXTS = (*reasons._TEXTS.values(), *reasons._OF_A_CAUSE.values())
PARAMETERS = {name for text in _TEXTS for _, name, _, _ in string.Formatter().parse(text) if name} - {"table", "remedy"}


def _is_said(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in SAID) or (isinstance(node, ast.Name) and node.id in SAID)


def _has_text(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value for one in ast.walk(node))


def judged(source: str) -> list[int]:
    """The lines of `source` that decide by what a sentence says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in MATCHERS and _is_said(node.func.value):
                found.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_is_said, sides)) and any(_has_text(side) for side in sides if not _is_said(side)):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("folder", ["service", "spark_jobs"])
def test_nothing_is_decided_by_what_a_sentence_says(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in Path(ROOT, folder).rglob("*.py")
        for line in judged(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_what_decides_by_a_sentence_is_recognised() -> None:
    calls = ("state.reason.startswith('dropped')", "table.reason.replace(a, b)", "last.reason.startswith(OTHER)")
    assert judged("\n".join((*calls, "reason == 'gone'", "'gone' in one.reason"))) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("code", ReasonCode)
@pytest.mark.parametrize("state", State)
def test_every_reason_has_a_sentence_in_every_state_and_is_stored_as_it_is(code: ReasonCode, state: State) -> None:
    why = Reason(code, {name: f"<{name}>" for name in PARAMETERS})
    said = sentence(why, state, "public.orders")
    assert said
    assert "{" not in said
    assert codec.from_json(Reason, codec.to_json(why)) == why


def test_every_cause_is_a_reason() -> None:
    assert {Reason.of(cause, "").code.value for cause in Cause} == {cause.value for cause in Cause}


def test_words_of_a_server_are_never_taken_for_a_place_in_the_sentence() -> None:
    why = Reason(ReasonCode.SNAPSHOT_WAITS, {"what": "{0.__class__} {table} %s"})
    assert sentence(why, State.SNAPSHOT, "public.orders").endswith("{0.__class__} {table} %s")


def test_a_renamed_table_and_another_time_are_said_without_a_change_of_what_is_stored() -> None:
    why = Reason.of(Cause.REWRITE, "it was rewritten")
    assert "`sluice resync public.b`" in sentence(why, State.STALE, "public.b")
    assert "at 2026-01-01" in sentence(why, State.STALE, "public.b", resync_at="2026-01-01T00:00:00+00:00")
