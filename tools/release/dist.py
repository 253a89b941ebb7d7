"""The distributions of a release: built twice from two copies in different places, and kept only when they are equal.

Invariant: the same commit makes the same bytes on every machine, so that anybody can compare what was published.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.errors import UsageError

SOURCES = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "service", "spark_jobs")
READERS = ("README.md", "pyproject.toml", "sluice_lake")
"""What the distribution of those who read the lake is made of, in its own folder."""


def build(root: Path, to: Path, *, sources: tuple[str, ...] = SOURCES, builder: list[str] | None = None) -> list[Path]:
    """Builds wheel and sdist of `sources` in `root` into the folder `to`; where they are. `builder` is a command
    that takes the folder of results last. Raises UsageError when two builds differ.
    """
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        first, second = (_built(root, Path(scratch) / name, sources, builder) for name in ("one", "two/deeper"))
        if [digest(one) for one in first] != [digest(one) for one in second]:
            raise UsageError("two builds of the same sources differ", hint=f"compare {first} with {second}")
        return [Path(shutil.copy2(one, to / one.name)) for one in first]


def digest(file: Path) -> str:
    """Its SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _built(root: Path, folder: Path, sources: tuple[str, ...], builder: list[str] | None) -> list[Path]:
    copy, results = folder / "checkout", folder / "dist"
    copy.mkdir(parents=True)
    for name in sources:
        if (root / name).is_dir():
            shutil.copytree(
                root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copy
            )
        else:
            shutil.copy(root / name, copy / name)
    command = builder or [sys.executable, "-m", "build", "--outdir"]
    # What differs between machines must not reach the archives.
    environment = {**os.environ, "TZ": "Asia/Tokyo" if folder.name == "one" else "UTC"}
    umask = 0o077 if folder.name == "one" else 0o022
    done = subprocess.run(
        [*command, str(results)], cwd=copy, env=environment, umask=umask, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UsageError("the distributions could not be built", hint=done.stdout[-2000:] + done.stderr[-2000:])
    return sorted(results.iterdir())
