"""What the reference says of exit codes against what the commands do."""

import re
from pathlib import Path

from service.cli.exits import HEALTH

ROOT = Path(__file__).parents[2]


def codes(command: str) -> set[int]:
    section = (ROOT / "docs" / "cli.md").read_text().split(f"## sluice {command}\n")[1].split("\n## ")[0]
    return {int(code) for code in re.findall(r"\d+", re.findall(r"^Exit codes: (.*)\.$", section, re.MULTILINE)[0])}


def test_the_reference_lists_the_exit_codes_of_status() -> None:
    assert codes("status") >= set(HEALTH.values())


def test_the_reference_lists_the_exit_codes_of_check_and_doctor() -> None:
    assert codes("check") >= {3, 7}
    assert codes("doctor") == codes("check")
