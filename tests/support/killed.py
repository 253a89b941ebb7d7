"""Scripts in processes of their own that die at a fault point."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import commands

ROOT = Path(__file__).parents[2]


def killed_at(point: str, script: str) -> None:
    """Runs `script` until it is killed at `point`; at its third passage for `name@3`. Fails when it ends otherwise."""
    name, _, passage = point.partition("@")
    result = run(script, f"{name}=crash@{passage or 1}")
    assert result.returncode == 137, result.stderr


def run(script: str, faults: str) -> subprocess.CompletedProcess[str]:
    """`script` with a plan of faults, to its end."""
    return commands.ended(sys.executable, "-c", script, env={**os.environ, "SLUICE_FAULTS": faults}, cwd=ROOT)
