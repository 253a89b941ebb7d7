"""Commands as processes of their own, to their end."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol


def ended(*command: str | Path, timeout: float = 150, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`command` when it has ended, in whatever way, with what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, **options)


def sluice(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return ended(sys.executable, "-m", "sluice", *arguments, **options)


class Done(Protocol):
    @property
    def returncode(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


def assert_ended(done: Done, code: int, *said: str) -> None:
    """With this exit code, having said these things on stderr."""
    missing = [words for words in said if words not in done.stderr]
    assert (done.returncode, missing) == (code, []), f"{done.stdout}\n{done.stderr}"
