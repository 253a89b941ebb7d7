"""The hosted workflow runs what a person runs: the same make targets, on every supported major."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from tools.local.binaries import supported_majors

ROOT = Path(__file__).parents[2]
HOSTED = sorted((ROOT / ".github").rglob("*.yml"))
STYLE = YamlLintConfig("extends: default\nrules: {line-length: {max: 120}}")


def jobs() -> dict[str, Any]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    return dict(workflow["jobs"])


@pytest.mark.parametrize("file", HOSTED, ids=lambda file: file.name)
def test_every_file_is_well_formed(file: Path) -> None:
    assert [str(problem) for problem in linter.run(file.read_text(encoding="utf-8"), STYLE)] == []


def test_every_command_is_a_make_target() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands} == {"check", "test", "test-matrix", "test-languages"}
    assert {command.split()[1] for command in commands} <= targets
    assert {command.split()[0] for command in commands} == {"make"}


def test_every_supported_major_has_a_job() -> None:
    assert jobs()["postgres"]["strategy"]["matrix"]["major"] == [str(major) for major in supported_majors()]


def test_every_action_is_pinned_to_a_commit() -> None:
    used = [step["uses"] for job in jobs().values() for step in job["steps"] if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
