"""Programs that the tests and the local stack use and that are no Python packages: Prometheus,
promtool and Alertmanager.

Invariant: what PATH has is taken as it is; what is fetched comes from the machine's own Debian
archive, either with the version and the sha256 written here or, when the archive has moved on, with
apt's signatures checked. Needs no root and installs nothing: packages are unpacked below
`build/tools`. Never raises anything but LocalServerError, whose message says what to install.

`python -m tools.local.tools` fetches all of them now; with `--optional` a failure is only
forgiven.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.local.binaries import LocalServerError

CACHE = Path(__file__).parents[2] / "build" / "tools"
_APT_HELPER = Path("/usr/lib/apt/apt-helper")
_DOWNLOAD_SECONDS = 300.0
_ADDRESS = re.compile(r"^'(?P<archive>\S+)/dists/[^/']+/InRelease'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package: its place in the pool and what its archive must be, by Debian architecture.
    `suite` is the package that holds the program in older suites.
    """

    pool: str
    version: str
    sha256: dict[str, str]
    suite: str = "prometheus"


PACKAGES: dict[str, Package] = {
    "prometheus": Package(
        "pool/main/p/prometheus",
        "2.53.3+ds1-2",
        {
            "amd64": "58c3e6a86c56cb3bfd71032fa48d65945d526441a212f5815dfe5ed9cb787ecc",
            "arm64": "59b459dee0ceef9c645a98166ea00f0d10946391a5d486505360e2d21cd1ddec",
        },
    ),
    "promtool": Package(
        "pool/main/p/prometheus",
        "2.53.3+ds1-2",
        {
            "amd64": "ff27654eacc95abd846d344e91fe4ba3b4f0588a50d606ed1d2f09ad3408722f",
            "arm64": "cc1d5889b4d2e2ef92a6984039d88c11993ad3c73f5e74acd3ee15adaefb764c",
        },
    ),
    "prometheus-alertmanager": Package(
        "pool/main/p/prometheus-alertmanager",
        "0.25.0-1+b4",
        {"amd64": "4fb9aed15cfe8e0c32408e643ab32a1e41ee87d2cc26f18aeba928b1b0b98ae7"},
        suite="prometheus-alertmanager",
    ),
}
"""By the program that the package is fetched for."""

HINT = "sudo apt-get install prometheus prometheus-alertmanager"
"""Installs all programs on Debian and its derivatives."""


def found(program: str, *, cache: Path = CACHE) -> Path | None:
    """Where `program` is without fetching anything: on PATH, else below `cache`."""
    on_path = shutil.which(program)
    if on_path is not None:
        return Path(on_path)
    return next((path for path in sorted(cache.glob(f"*/usr/bin/{program}")) if os.access(path, os.X_OK)), None)


def tool(program: str, *, cache: Path = CACHE) -> Path:
    """`found`, or fetched once. Raises LocalServerError when it cannot be had."""
    present = found(program, cache=cache)
    if present is not None:
        return present
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as scratch:
        directory = Path(scratch)
        try:
            archive = _pinned(PACKAGES[program], program, directory) or _of_the_suite(PACKAGES[program], directory)
            _run(["dpkg-deb", "--extract", str(archive), str(directory / "unpacked")])
            target = cache / archive.stem
            if not target.exists():
                (directory / "unpacked").rename(target)
        except (OSError, subprocess.SubprocessError) as failure:
            raise LocalServerError(
                f"{program} is not on PATH and could not be fetched from the Debian archive "
                f"({_reason(failure)}): {HINT}"
            ) from failure
    fetched = found(program, cache=cache)
    if fetched is None:
        raise LocalServerError(f"the package fetched for {program} does not hold it: {HINT}")
    return fetched


def _pinned(package: Package, program: str, directory: Path) -> Path | None:
    """The very archive named in PACKAGES, None where this machine's mirror does not have it."""
    architecture = _run(["dpkg", "--print-architecture"]).strip()
    digest = package.sha256.get(architecture)
    if digest is None:
        return None
    name = f"{program}_{package.version}_{architecture}.deb"
    for mirror in _mirrors(directory):
        command = [
            str(_APT_HELPER),
            *_private(directory),
            "download-file",
            f"{mirror}/{package.pool}/{name}",
            str(directory / name),
            f"SHA256:{digest}",
        ]
        if subprocess.run(command, capture_output=True, timeout=_DOWNLOAD_SECONDS, check=False).returncode == 0:
            return directory / name
    return None


def _of_the_suite(package: Package, directory: Path) -> Path:
    """Debian's package as the machine's own suites have it; in Debian 12 `prometheus` holds promtool
    too.
    """
    _run(["apt-get", *_private(directory), "--quiet", "update"])
    _run(["apt-get", *_private(directory), "--quiet", "download", package.suite], cwd=directory)
    return next(directory.glob("*.deb"))


def _mirrors(directory: Path) -> list[str]:
    """The archives that apt's sources name, without any lists having been fetched before."""
    return list(dict.fromkeys(_ADDRESS.findall(_run(["apt-get", *_private(directory), "update", "--print-uris"]))))


def _private(directory: Path) -> list[str]:
    """apt with its sources and proxies as configured and its state here, which needs no root and
    leaves the machine's alone.
    """
    lists, cache = directory / "lists", directory / "cache"
    for folder in (lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": cache,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]


def _run(command: list[str], *, cwd: Path | None = None) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=True, cwd=cwd
    ).stdout


def _reason(failure: Exception) -> str:
    if isinstance(failure, subprocess.CalledProcessError):
        said = [line for line in str(failure.stderr).splitlines() if line.strip()]
        return said[-1] if said else f"{failure.cmd[0]} ended with {failure.returncode}"
    if isinstance(failure, FileNotFoundError):
        return f"{failure.filename} is missing: no Debian"
    return type(failure).__name__


def main(arguments: list[str]) -> int:
    for program in PACKAGES:
        try:
            sys.stderr.write(f"{program}: {tool(program)}\n")
        except LocalServerError as failure:
            sys.stderr.write(f"{failure}\n")
            if "--optional" not in arguments:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
