"""The distribution is whole, installs alone, and owns its two package names."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"sluice": "service", "sluice_spark": "spark_jobs"}
"""And the folder that holds each."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", directory, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return next(directory.glob("*.whl"))


def test_the_wheel_holds_both_packages_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    folders = [ROOT / folder for folder in PACKAGES.values()]
    sources = {
        path.relative_to(folder).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()
    }
    expected = {name for name in sources if "__pycache__" not in name}
    assert {name for name in held if ".dist-info/" not in name} == expected
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_the_wheel_installs_in_an_empty_environment_and_sluice_version_runs(wheel: Path, tmp_path: Path) -> None:
    """With the base dependencies alone: neither extra is there, so nothing that `version` imports
    may need one.
    """
    venv.create(tmp_path / "empty", with_pip=False, symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    pins = tmp_path / "pins.txt"
    pins.write_text(
        "\n".join(re.findall(r"^[a-z0-9._-]+==[^ ;]+", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE))
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        os.fspath(python),
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--constraint", pins, wheel], check=True, capture_output=True, timeout=120)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = subprocess.run(
        [python.with_name("sluice"), "version", "--json"],
        check=True,
        capture_output=True,
        cwd="/",
        env=clean,
        timeout=60,
    )
    assert json.loads(answer.stdout)["version"] == PROJECT["version"]
    where = subprocess.run(
        [python, "-c", "import sluice; print(sluice.__file__)"],
        check=True,
        capture_output=True,
        cwd="/",
        env=clean,
        text=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(tmp_path)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_claims_our_package_names(package: str) -> None:
    assert set(importlib.metadata.packages_distributions().get(package, [])) <= {PROJECT["name"]}


def test_the_versions_agree() -> None:
    assert importlib.metadata.version(PROJECT["name"]) == PROJECT["version"]
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert PROJECT["version"] in headings or headings == ["Unreleased"]


def test_it_cannot_be_uploaded_by_accident() -> None:
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]
