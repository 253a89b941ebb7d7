"""Chromium for the tests of the status page.

Invariant: what PATH has is taken as it is; else Debian's own package with the libraries that the
machine lacks, fetched by apt with its signatures checked, and unpacked below `build/tools`: needs
no root, installs nothing. No version is written here, for Debian keeps none but the newest. Never
raises anything but LocalServerError, whose message says what to install.

`python -m tools.local.browser` fetches it now; with `--optional` a failure is only reported.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.local.binaries import LocalServerError

CACHE = Path(__file__).parents[2] / "build" / "tools"
HINT = "sudo apt-get install chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""For pages of our own on loopback: no sandbox, which refuses root, and no talk with anybody else."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PACKAGES = ("chromium", "fontconfig-config", "fonts-dejavu-core")
_TREE = "chromium"
_PROGRAM = Path("usr/lib/chromium/chromium")
_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Browser:
    """`environment` is what the program needs over the caller's own."""

    program: Path
    environment: dict[str, str]


def browser(*, cache: Path = CACHE) -> Browser:
    """What is on PATH, else what is below `cache`, fetched once. Raises LocalServerError when it
    cannot be had.
    """
    on_path = next(filter(None, map(shutil.which, _NAMES)), None)
    if on_path is not None:
        return Browser(Path(on_path), {})
    tree = cache / _TREE
    if not (tree / _PROGRAM).is_file():
        _fetch(tree)
    folders = sorted({str(path.parent) for path in tree.rglob("*.so*")})
    fonts = tree / "etc" / "fonts"
    return Browser(
        tree / _PROGRAM,
        {"LD_LIBRARY_PATH": os.pathsep.join(folders), **({"FONTCONFIG_PATH": str(fonts)} if fonts.is_dir() else {})},
    )


def _fetch(tree: Path) -> None:
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".fetching-") as scratch:
        directory = Path(scratch)
        archives, unpacked = directory / "archives", directory / "unpacked"
        for folder in (directory / "lists" / "partial", archives, unpacked):
            folder.mkdir(parents=True)
        apt = [
            "apt-get",
            "--quiet",
            "-o",
            f"Dir::State::Lists={directory / 'lists'}",
            "-o",
            f"Dir::Cache={directory}",
            "-o",
            "APT::Sandbox::User=root",
        ]
        try:
            _run([*apt, "update"])
            # Simulated: the packages that an installation would add, the browser's libraries among
            # them.
            plan = _run([*apt, "install", "--simulate", "--no-install-recommends", *_PACKAGES])
            names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
            _run([*apt, "download", *names], cwd=archives)
            for archive in sorted(archives.glob("*.deb")):
                _run(["dpkg-deb", "--extract", str(archive), str(unpacked)])
            _own_fonts(unpacked, tree)
            unpacked.rename(tree)
        except (OSError, subprocess.SubprocessError) as failure:
            said = (
                (failure.stderr or "").strip().splitlines()[-1:]
                if isinstance(failure, subprocess.CalledProcessError)
                else [type(failure).__name__]
            )
            raise LocalServerError(
                f"chromium is not on PATH and could not be fetched from the Debian archive ({' '.join(said)}): {HINT}"
            ) from failure


def _own_fonts(unpacked: Path, tree: Path) -> None:
    """A font configuration that was unpacked looks for fonts where they were unpacked too."""
    configuration = unpacked / "etc" / "fonts" / "fonts.conf"
    if configuration.is_file():
        text = configuration.read_text(encoding="utf-8")
        configuration.write_text(
            text.replace(
                "<dir>/usr/share/fonts</dir>", f"<dir>/usr/share/fonts</dir><dir>{tree}/usr/share/fonts</dir>"
            ),
            encoding="utf-8",
        )


def _run(command: list[str], *, cwd: Path | None = None) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, cwd=cwd).stdout


def main(arguments: list[str]) -> int:
    try:
        sys.stderr.write(f"chromium: {browser().program}\n")
    except LocalServerError as failure:
        sys.stderr.write(f"{failure}\n")
        return 0 if "--optional" in arguments else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
