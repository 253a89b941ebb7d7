"""The last release and this checkout, as commands on one pipeline. The wheel of the release is unpacked and put in
front of the module path of a process of its own, with the dependencies of this environment.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.local.sluice import Pipeline

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "release"
_DEADLINE_SECONDS = 120.0


@dataclass(frozen=True)
class Release:
    """`code` is the folder that its modules come from, empty for this checkout."""

    name: str
    code: str

    def run(self, pipeline: Pipeline, *arguments: str, faults: str = "") -> subprocess.CompletedProcess[str]:
        """`sluice <arguments>` to its end, whatever its status."""
        return self._python(pipeline.directory, "-m", "sluice", *arguments, "-c", str(pipeline.config), faults=faults)

    def must(self, pipeline: Pipeline, *arguments: str) -> str:
        """`sluice <arguments>`, which has to succeed; what it answers."""
        done = self.run(pipeline, *arguments)
        assert done.returncode == 0, (
            f"{self.name}: sluice {arguments[0]} ended with {done.returncode}\n{done.stderr[-4000:]}"
        )
        return done.stdout

    def origins(self, folder: Path) -> list[Path]:
        """Where the modules of both programs come from."""
        program = "import sluice, sluice_spark; print(sluice.__file__); print(sluice_spark.__file__)"
        return [Path(line) for line in self._python(folder, "-c", program).stdout.splitlines()]

    def _python(self, folder: Path, *arguments: str, faults: str = "") -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "PYTHONPATH"))}
        return subprocess.run(
            [sys.executable, *arguments],
            env={**ours, "PYTHONPATH": self.code, "SLUICE_FAULTS": faults},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )


NEW = Release("this checkout", "")


def unpacked(folder: Path) -> Release:
    """The last release, below `folder`. AssertionError when the wheel is not the one that was recorded."""
    digest, name = (FOLDER / "SHA256SUMS").read_text(encoding="utf-8").split()
    wheel = FOLDER / name
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == digest, f"{name} is not the wheel that was recorded"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return Release(name, str(folder))
