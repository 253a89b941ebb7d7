"""docs/protocol.md names all sixty points, each once, and every scenario; every test that it names
exists.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
PROOF = r"((?:[a-z0-9_]+/)+\w+\.py)::(\w+)(?:\[(\w+)(?:-\w+)?\])?"
POINT = re.compile(rf"^\| (\d+) \| .+ \| .+ \| {PROOF} \|$", re.MULTILINE)
SCENARIO = re.compile(rf"^\| (\d{{3}}_\w+|extra) \| .+ \| {PROOF} \|$", re.MULTILINE)
LINE = re.compile(r"^\| [^|]+ \| .+::.+\|$", re.MULTILINE)

# Of the numbers up to 34 and 100 these are about what a subscriber says and shows of itself.
SUBSCRIBERS_OWN = {26}


def test_the_page_has_the_sixty_points_in_order() -> None:
    assert [int(number) for number, *_ in POINT.findall(PAGE)] == list(range(1, 61))


def test_the_page_has_every_scenario_that_concerns_a_publisher() -> None:
    numbers = {int(name[:3]) for name, *_ in SCENARIO.findall(PAGE) if name != "extra"}
    assert numbers == {*range(1, 35), 100} - SUBSCRIBERS_OWN


def test_every_line_of_both_tables_is_understood() -> None:
    assert len(LINE.findall(PAGE)) == len(POINT.findall(PAGE)) + len(SCENARIO.findall(PAGE))


@pytest.mark.parametrize("table", [POINT, SCENARIO], ids=["points", "scenarios"])
def test_every_test_that_the_page_names_exists(table: re.Pattern[str]) -> None:
    """A case in brackets must be spelled out in the test's file."""
    missing = []
    for _, path, test, case in table.findall(PAGE):
        file = ROOT / "tests" / path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if f"def {test}(" not in text or (case and f'"{case}"' not in text):
            missing.append(f"{path}::{test}[{case}]")
    assert missing == []
