"""The command line from its arguments to its exit code, within the test's process: no interpreter starts for it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from sluice.cli import cli, exits


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


class Sluice(Protocol):
    def __call__(self, *arguments: str, cwd: Path | None = None, **environ: str) -> Ended: ...


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sluice:
    def run(*arguments: str, cwd: Path | None = None, **environ: str) -> Ended:
        with monkeypatch.context() as patched:
            for name in [name for name in os.environ if name.startswith("SLUICE_")]:
                patched.delenv(name)
            for name, value in environ.items():
                patched.setenv(name, value)
            patched.chdir(cwd or Path.cwd())
            capsys.readouterr()
            code = exits.execute(cli, arguments)
        seen = capsys.readouterr()
        return Ended(code, seen.out, seen.err)

    return run
