"""The distribution is whole, installs alone, and owns its two package names."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from sluice.errors import UsageError
from tests.support import commands
from tests.support.extent import cases, slow
from tests.support.installed import built_wheel, environment_with, outside

ROOT = Path(__file__).parents[2]
PACKAGES = {"sluice": "service", "sluice_spark": "spark_jobs"}
"""And the folder that holds each."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READERS = tomllib.loads((ROOT / "lake" / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sluice` of an environment with the base dependencies alone."""
    return environment_with(str(wheel), tmp_path_factory.mktemp("base")).with_name("sluice")


def run(sluice: Path, *arguments: str, cwd: Path = Path("/"), **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [str(sluice), *arguments]
    return commands.ended(*command, cwd=cwd, env=outside(**variables))


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


def test_the_base_is_small_and_is_not_the_checkout(base: Path) -> None:
    answer = run(base, "version", "--json")
    assert json.loads(answer.stdout)["version"] == PROJECT["version"], answer.stderr
    shown = run(base.with_name("python"), "-c", "import sluice; print(sluice.__file__)")
    packages = Path(shown.stdout.strip()).parents[1]
    assert packages.is_relative_to(base.parents[1])
    assert [name for name in ("numpy", "pyarrow", "pyspark", "delta") if (packages / name).exists()] == []


def test_the_base_begins_a_pipeline_and_reads_spool_and_status(base: Path, tmp_path: Path) -> None:
    """Nothing listens at the address of the source: what is asked of the spool is answered all the same."""
    variables = {"SLUICE_SOURCE__DSN": "host=127.0.0.1 port=1 connect_timeout=2"}
    made = run(base, "init", "shop", "--pipeline", "shop", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    shop = tmp_path / "shop"
    for words in ("config validate", "spool verify", "spool ls --json", "tables --json", "check --object-store"):
        done = run(base, *words.split(), cwd=shop, **variables)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    status = run(base, "status", "--json", cwd=shop, **variables)
    assert json.loads(status.stdout)["pipeline"] == "shop", status.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    cases(
        [("up", "spark"), ("run", "service"), ("apply", "spark"), ("check", "service"), ("plan", "service"),
         ("setup", "service"), ("verify", "spark"), ("jars fetch", "spark")],
        quick=[("up", "spark"), ("run", "service")],
    ),
)  # fmt: skip
def test_a_command_that_needs_more_names_what_to_install(base: Path, tmp_path: Path, command: str, extra: str) -> None:
    run(base, "init", "shop", "--pipeline", "shop", cwd=tmp_path)
    done = run(base, *command.split(), cwd=tmp_path / "shop", SLUICE_SOURCE__DSN="host=127.0.0.1 port=1")
    assert done.returncode == UsageError.exit_code, done.stderr
    assert f"pip install 'sluice-cdc[{extra}]'" in done.stderr


@slow
def test_the_wheel_of_the_readers_holds_its_package_whole_and_nothing_else(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "build", "--wheel", "--outdir", os.fspath(tmp_path), os.fspath(ROOT / "lake"))
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (readers,) = tmp_path.glob("sluice_lake-*.whl")
    with zipfile.ZipFile(readers) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(ROOT / "lake").as_posix() for path in (ROOT / "lake" / "sluice_lake").rglob("*.*")}
    assert held == {name for name in sources if "__pycache__" not in name}
    assert READERS["version"] == PROJECT["version"]
    assert not [line for line in READERS["classifiers"] if line.startswith("Private")]
