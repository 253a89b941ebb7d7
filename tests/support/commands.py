"""Commands as processes of their own, to their end."""

import subprocess
import sys
from pathlib import Path
from typing import Any


def ended(*command: str | Path, timeout: float = 150, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`command` when it has ended, in whatever way, with what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, **options)


def sluice(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return ended(sys.executable, "-m", "sluice", *arguments, **options)
