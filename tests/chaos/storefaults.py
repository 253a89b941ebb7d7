"""Where a story's spool lies, and what may happen to it there: a disk that is full, that cannot be written, or is gone.

Mounting a file system of one's own needs root; an ordinary user takes rights away instead, which root would not notice. Every damage is undone by `heal`.
"""

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

DISK = "64m"


class Place:
    """A local folder. `mounted` says that a file system of its own is there."""

    def __init__(self, folder: Path, *, mounted: bool = False) -> None:
        self.folder = folder
        self.name = "local disk of its own" if mounted else "local folder"
        self._mounted = mounted
        self._filler = folder / "filler"
        self._away = folder / "away"
        self._changed_rights: list[tuple[Path, int]] = []

    @property
    def uri(self) -> str:
        return (self.folder / "spool").as_uri()

    def own_spool(self, pipeline: str) -> Path:
        """The pipeline's prefix as a local folder, for the oracle of acknowledgements."""
        return self.folder / "spool" / pipeline

    def fetched(self, pipeline: str) -> Path:
        """The same, to be read whole."""
        return self.own_spool(pipeline)

    def hurt(self, choice: random.Random) -> str:
        """Does one kind of damage and says which."""
        ways: list[tuple[str, Callable[[], None]]] = [("store: full disk", self._fill), ("store: read-only", self._forbid)]
        if not self._mounted:
            ways = [("store: permission lost", self._revoke)] if os.geteuid() != 0 else [("store: untouched (no file system of its own)", lambda: None)]
        name, do = choice.choice(ways)
        do()
        return name

    def heal(self) -> None:
        """Undoes every damage."""
        if self._mounted:
            subprocess.run(["mount", "-o", "remount,rw", str(self.folder)], check=False, capture_output=True)
        self._filler.unlink(missing_ok=True)
        while self._changed_rights:
            path, mode = self._changed_rights.pop()
            path.chmod(mode)

    def _fill(self) -> None:
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    def _forbid(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=False, capture_output=True)

    def _revoke(self) -> None:
        for path in [one for one in self.folder.rglob("*") if one.is_dir()]:
            self._changed_rights.append((path, path.stat().st_mode & 0o7777))
        for path, _ in self._changed_rights:
            path.chmod(0o555)


def local(folder: Path) -> Place:
    """A plain folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return Place(folder)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Place]:
    """A file system of its own where that is possible, else a plain folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        yield Place(folder)
        return
    place = Place(folder, mounted=True)
    try:
        yield place
    finally:
        place.heal()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
