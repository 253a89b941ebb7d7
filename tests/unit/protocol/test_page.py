"""Every test that docs/protocol.md names for its points and scenarios exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
PROOF = r"((?:[a-z0-9_]+/)+\w+\.py)::(\w+)(?:\[(\w+)(?:-\w+)?\])?"
POINT = re.compile(rf"^\| (\d+) \| .+ \| .+ \| {PROOF} \|$", re.MULTILINE)
SCENARIO = re.compile(rf"^\| (\d{{3}}_\w+|extra) \| .+ \| {PROOF} \|$", re.MULTILINE)
LINE = re.compile(r"^\| [^|]+ \| .+::.+\|$", re.MULTILINE)


@pytest.mark.parametrize("table", [POINT, SCENARIO], ids=["points", "scenarios"])
def test_every_test_that_the_page_names_exists(table: re.Pattern[str]) -> None:
    """A case in brackets must be spelled out in the test's file."""
    missing = []
    assert len(LINE.findall(PAGE)) == sum(len(one.findall(PAGE)) for one in (POINT, SCENARIO))
    for _, path, test, case in table.findall(PAGE):
        file = ROOT / "tests" / path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if f"def {test}(" not in text or (case and f'"{case}"' not in text):
            missing.append(f"{path}::{test}[{case}]")
    assert missing == []
