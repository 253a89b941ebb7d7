"""stdout and stderr that are full, closed, or cannot show a name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import begun, table

ROOT = Path(__file__).parents[3]
CANNOT = b"error: stdout cannot be written: No space left on device\n"


def shell(line: str, folder: Path, **environ: str) -> "subprocess.CompletedProcess[bytes]":
    """`sluice` in `line` is the command, as a process of its own."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("sluice", f"{sys.executable} -m sluice")],
        cwd=folder,
        env={**ours, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **environ},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", ["version", "config show --json", "--help"])
def test_data_that_cannot_be_written_is_an_error_that_says_so(arguments: str, configured: Path) -> None:
    done = shell(f"sluice {arguments} > /dev/full", configured)
    assert (done.returncode, done.stderr) == (2, CANNOT)


def test_a_failure_is_said_on_stderr_even_if_its_document_cannot_be_written(configured: Path) -> None:
    done = shell("sluice config show --json -c none.yaml > /dev/full", configured)
    assert done.returncode == 2
    assert b"there is no configuration file none.yaml" in done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("sluice version >&-", 0),
        ("sluice version <&- >&- 2>&-", 0),
        ("sluice version 2>&-", 0),
        ("sluice version --nope 2>/dev/full", 2),
    ],
)
def test_a_stream_that_is_closed_or_full_changes_no_exit_code(line: str, code: int, configured: Path) -> None:
    assert shell(line, configured).returncode == code


@pytest.mark.parametrize("arguments", ["tables", "tables --json", "tables -o yaml", "status"])
def test_a_name_that_the_encoding_of_stdout_lacks_is_shown_escaped(arguments: str, configured: Path) -> None:
    _, log = begun(configured)
    log.append(table("7", "日本😀"))
    done = shell(f"sluice {arguments}", configured, PYTHONIOENCODING="latin-1")
    assert b"UnicodeEncodeError" not in done.stderr
    assert b"\\u65e5" in done.stdout.lower()
