"""The wheel of this checkout, and environments in which nothing of the checkout can be imported."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built_wheel(directory: Path, *, source: Path = ROOT) -> Path:
    """The wheel of this checkout, or of the distribution below `source`, built into `directory`."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(directory), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    return next(directory.glob("*.whl"))


def pins(file: Path) -> Path:
    """Writes the versions of the lock into `file`, as pip takes them as constraints."""
    lock = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    found = re.findall(r"^[a-z0-9._-]+==[^\\\n]+", lock, re.MULTILINE)
    file.write_text("\n".join(found) + "\n", encoding="utf-8")
    return file


def pip_variables(folder: Path) -> dict[str, str]:
    """What pip reads from the environment of a user whose home is not ours: the locked versions, and its cache."""
    cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    quiet = {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return {"PIP_CONSTRAINT": str(pins(folder / "pins.txt")), "PIP_CACHE_DIR": cache, **quiet}


def environment_with(what: str, folder: Path) -> Path:
    """The `python` of a new environment below `folder` into which pip installed `what` and nothing else."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run(
        [*pip, what], check=True, capture_output=True, timeout=300, env={**os.environ, **pip_variables(folder)}
    )
    return python


def outside(**more: str) -> dict[str, str]:
    """The variables of a process that sees neither the checkout nor settings."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "PYTHON", "PG"))}
    return {**plain, **more}
