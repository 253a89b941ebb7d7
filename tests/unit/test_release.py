"""A release is the same bytes wherever it is built, says what it is made of, and has notes."""

import json
import re
import tarfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing

from sluice.errors import UsageError
from sluice_spark import jars
from tests.support.extent import slow
from tests.support.installed import environment_with
from tools.release import bill, components, dist, licenses, notes

ROOT = Path(__file__).parents[2]
BACKEND = re.findall(r"hatchling==[0-9.]+", (ROOT / "pyproject.toml").read_text())[0]


@slow
def test_two_builds_on_different_machines_are_the_same_bytes(tmp_path: Path) -> None:
    """In other folders, time zones and umasks, with other times of files."""
    python = environment_with(BACKEND, tmp_path)
    builder = [str(python.with_name("hatchling")), "build", "-d"]
    made = dist.build(ROOT, tmp_path / "dist", builder=builder)
    assert [file.suffix for file in made] == [".whl", ".gz"]
    with tarfile.open(made[1]) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
    files = {"CHANGELOG.md", "LICENSE", "README.md", "PKG-INFO", "pyproject.toml"}
    assert folders - {".gitignore"} == files | {"service", "spark_jobs"}
    readers = dist.build(ROOT / "lake", tmp_path / "readers", sources=dist.READERS, builder=builder)
    assert [file.name.split("-")[0] for file in readers] == ["sluice_lake", "sluice_lake"]


def test_a_build_that_differs_is_not_kept(tmp_path: Path) -> None:
    builder = ["sh", "-c", 'mkdir -p "$1" && pwd > "$1/built"', "sh"]
    with pytest.raises(UsageError, match="two builds"):
        dist.build(ROOT, tmp_path / "dist", builder=builder)
    assert list((tmp_path / "dist").iterdir()) == []


def test_the_bill_of_materials_is_valid_and_names_every_lock_and_jar() -> None:
    text = bill.of(ROOT, "0.1.0")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert bill.of(ROOT, "0.1.0") == text, "the same for the same locks"
    listed = {one["purl"]: one for one in json.loads(text)["components"]}
    for lock in ("service.txt", "spark.txt", "query.txt"):
        for name, version in re.findall(
            r"^([a-z0-9-]+)==([^ \\]+)(?! ; sys)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE
        ):
            assert f"pkg:pypi/{name}@{version}" in listed or name == "tzdata"
    hashes = {one["hashes"][0]["content"] for one in listed.values() if "hashes" in one}
    assert hashes == {*jars.DELTA.checksums.values(), *jars.S3.checksums.values()}


def test_every_license_is_one_that_was_looked_at() -> None:
    spdx = get_spdx_licensing()
    for one in components.all_of(ROOT):
        assert one.license, f"{one.name} says no license"
        found = set(spdx.license_keys(spdx.parse(one.license, validate=True)))
        assert found <= licenses.ALLOWED, f"{one.name}: {one.license}"


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2027-01-01\n\n### Added\n\n- this\n\n## [0.9.0]\n\n- that\n"
    assert notes.of(text, "1.0.0") == "### Added\n\n- this\n"
    for missing in ("Unreleased", "2.0.0"):
        with pytest.raises(UsageError, match="no section"):
            notes.of(text, missing)
