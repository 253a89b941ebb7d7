"""The hosted workflows run what a person runs: the same make targets, on every supported major. They are linted by the
tools that their readers trust.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from tests.support import commands
from tools.local.binaries import supported_majors

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOSTED = sorted((ROOT / ".github").rglob("*.yml"))
STYLE = YamlLintConfig("extends: default\nrules: {line-length: {max: 160}}")
ACTIONLINT = ROOT / "build" / "actionlint" / "actionlint"
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def jobs(name: str = "ci") -> dict[str, Any]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    return dict(workflow["jobs"])


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in jobs(name).values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("file", HOSTED, ids=lambda file: file.name)
def test_every_file_is_well_formed(file: Path) -> None:
    assert [str(problem) for problem in linter.run(file.read_text(encoding="utf-8"), STYLE)] == []


def test_actionlint_has_nothing_to_say() -> None:
    if not ACTIONLINT.exists():
        pytest.skip("actionlint is not in build/actionlint; `make actionlint` builds it where Go is installed")
    done = commands.ended(ACTIONLINT, *WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, "")


def test_zizmor_has_nothing_to_say_however_pedantic(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--pedantic", "--format", "plain"]
    done = commands.ended(*command, *map(str, WORKFLOWS))
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "bad.yml"
    good = WORKFLOWS[0].read_text(encoding="utf-8").replace("permissions: {}", "permissions: write-all")
    bad.write_text(re.sub(r"checkout@[0-9a-f]{40}", "checkout@v5", good))
    found = commands.ended(*command, str(bad)).stdout
    assert all(audit in found for audit in ("excessive-permissions", "unpinned-uses")), found


def test_every_command_of_ci_and_of_the_night_is_a_make_target() -> None:
    commands = [step["run"].split() for step in steps("ci") if "run" in step]
    assert {command[0] for command in commands} == {"make"}
    nightly = jobs("nightly")["long"]["strategy"]["matrix"]["include"]
    targets = {command[1] for command in commands} | {one["target"].split()[0] for one in nightly}
    assert {"check", "test", "test-matrix", "test-languages", "chaos", "soak"} <= targets <= TARGETS


def test_every_python_that_the_package_names_is_tested_by_night_or_by_make_test() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    named = {one.removeprefix(prefix) for one in project["classifiers"] if one.startswith(prefix)}
    tested = {
        *jobs("nightly")["pythons"]["strategy"]["matrix"]["python"],
        *jobs("ci")["test"]["strategy"]["matrix"]["python"],
    }
    assert named <= tested


def test_nothing_is_published_before_all_tests_and_nothing_with_a_stored_password() -> None:
    release = jobs("release")
    assert release["test"]["uses"] == "./.github/workflows/ci.yml"
    for name in ("publish", "image"):
        assert set(release[name]["needs"]) >= {"test", "dist"}
    assert release["chart"]["needs"] == "image"
    assert set(release["notes"]["needs"]) == {"publish", "chart"}
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"secrets\.(\w+)", text)) == {"GITHUB_TOKEN"}
    assert {"dist", "notes", "chart"} == set(re.findall(r"\bmake (?:--silent )?([a-z]+)", text)) <= TARGETS


def test_a_release_that_is_run_again_is_not_refused_for_what_an_earlier_attempt_published() -> None:
    uploads = [step["with"] for step in steps("release") if "upload-artifact@" in step.get("uses", "")]
    assert [one.get("overwrite") for one in uploads] == [True] * 2
    (index,) = [step["with"] for step in steps("release") if "gh-action-pypi-publish@" in step.get("uses", "")]
    assert index["skip-existing"] is True
    (notes,) = [step["run"] for step in steps("release") if "gh release create" in step.get("run", "")]
    there, missing = notes.partition('if gh release view "$GITHUB_REF_NAME"')[2].split("else")
    assert all(wanted in there for wanted in ("gh release edit", "gh release upload", "--clobber dist/*"))
    assert "gh release create" in missing


def test_the_release_does_not_wait_for_a_place_that_it_holds_itself() -> None:
    """In a workflow that is called, `github.workflow` is the name of the caller: with one group for both, the hosting
    service cancels the run as a deadlock.
    """
    groups = {}
    for name in ("ci", "release"):
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        groups[name] = re.sub(
            r"\$\{\{\s*github\.workflow\s*\}\}", "release", yaml.safe_load(text)["concurrency"]["group"]
        )
    assert groups["ci"] != groups["release"]


def test_images_get_a_bill_of_materials_a_provenance_and_a_signature_of_their_digest() -> None:
    (build,) = [step["run"] for step in jobs("release")["image"]["steps"] if "buildx build" in step.get("run", "")]
    for wanted in ("--sbom=true", "--provenance=mode=max", 'cosign sign --yes "$image@$digest"'):
        assert wanted in build
    files = {f"deploy/images/{name}.Dockerfile" for name in jobs("release")["image"]["strategy"]["matrix"]["name"]}
    assert all((ROOT / file).is_file() for file in files)


def test_every_supported_major_has_a_job() -> None:
    assert jobs()["postgres"]["strategy"]["matrix"]["major"] == [str(major) for major in supported_majors()]


def test_renovate_finds_the_versions_that_the_makefile_names() -> None:
    config = json.loads((ROOT / ".github" / "renovate.json").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for manager in config["customManagers"]:
        (pattern,) = manager["matchStrings"]
        assert re.search(pattern.replace("(?<", "(?P<"), makefile), pattern
