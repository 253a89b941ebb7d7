"""A reader that goes away is no failure: 141, whatever wrote, and wherever it was written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.extent import cases

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "arguments", cases(["--help", "version", "config env", "status --colour"], quick=["version", "status --colour"])
)
@pytest.mark.parametrize("stderr", [False, True], ids=["stdout", "both"])
def test_a_closed_pipe_ends_every_command_with_141(arguments: str, *, stderr: bool, tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text(
        'version: 1\npipeline: p\nsource: {dsn: "host=h"}\nspool: {uri: "file:///s"}\nlake: {uri: "file:///l"}\n'
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sluice", *arguments.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=writing if stderr else subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    said_on_stderr = arguments == "status --colour" and not stderr
    assert done.returncode == (2 if said_on_stderr else 141)
