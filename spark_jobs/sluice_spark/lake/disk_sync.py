"""Commits of a lake on a local disk, made to survive a power loss before they count.

Delta syncs neither its data files nor its log there. Owns: a commit counts when every file
that it brought is there with its size and has been synced, then the folders that name them. A file
whose sync failed is never synced again: the kernel may then report success for pages that it
dropped (fsync(2)), so the table stops. A lake in an object store needs none of this.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sluice.errors import ApplyError, UnsupportedChange
from sluice_spark.lake.foreign_commits import Commit


def sync_commits(table: Path, commits: Sequence[Commit]) -> None:
    """Syncs what `commits`, which follow each other, brought to `table`. Raises UnsupportedChange
    when something of it is lost or may be, ApplyError.
    """
    log = table / "_delta_log"
    folders = {table, log}
    removed: set[str] = set()
    for commit in reversed(commits):
        for name, size in commit.files:
            path = _located(table, name)
            _sync_file(path, size, commit, may_be_gone=name in removed)
            folders.add(path.parent)
        removed |= commit.removed
    newest = {f"{commit.version:020d}" for commit in commits}
    # A log has thousands of files: a path for each of them would take longer than the commit.
    with os.scandir(log) as entries:
        names = sorted(one.name for one in entries if one.name[:20] in newest or one.name == "_last_checkpoint")
    for name in names:
        _sync_file(log / name, -1, commits[-1], may_be_gone=True)
    for folder in sorted(folders):
        _sync_folder(folder)
    if commits[0].version == 0:
        _sync_new_folders(table)


def sync_checkpoint(table: Path, version: int) -> None:
    """Syncs the checkpoint of `version`, before anything names it or goes away because of it. Raises ApplyError
    when it cannot: the log has all that it says.
    """
    log = table / "_delta_log"
    folders = [folder for folder in (log, log / "_sidecars") if folder.is_dir()]
    written = f"{version:020d}.checkpoint."
    for folder in folders:
        with os.scandir(folder) as entries:
            # Hadoop's check sum of a file lies beside it, under its name behind a dot.
            names = [one.name for one in entries if one.name.removeprefix(".").startswith(written)]
        for path in [*(folder / name for name in names), folder]:
            try:
                with _opened(path, os.O_RDONLY) as descriptor:
                    os.fsync(descriptor)
            except FileNotFoundError:
                continue  # a temporary one of an attempt that was killed
            except OSError as error:
                raise ApplyError(
                    f"a checkpoint of the lake table could not be synced to disk ({error.strerror})",
                    hint="check the lake's disk",
                ) from None


def _located(table: Path, name: str) -> Path:
    parts = urlsplit(name)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else table / name


def _sync_file(path: Path, size: int, commit: Commit, *, may_be_gone: bool) -> None:
    try:
        with _opened(path, os.O_RDONLY) as descriptor:
            if 0 <= size != os.fstat(descriptor).st_size:
                raise UnsupportedChange(
                    f"a file of the lake table's version {commit.version} was cut short, by a power loss or a full disk"
                )
            _sync(descriptor)
    except FileNotFoundError:
        if not may_be_gone:
            raise UnsupportedChange(f"a file of the lake table's version {commit.version} is missing") from None


def _sync_folder(folder: Path) -> None:
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        _sync(descriptor)


def _sync_new_folders(table: Path) -> None:
    """Up to the first folder that this process cannot write to, which its owner made durable."""
    for folder in table.parents:
        if not os.access(folder, os.W_OK):
            return
        _sync_folder(folder)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ApplyError(
            f"a file of the lake table could not be opened to sync it: {error.strerror}",
            hint="check the lake's directory and its permissions",
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        reason = (
            f"a commit of the lake table could not be synced to disk ({error.strerror}), so nothing says "
            "that it is whole"
        )
        raise UnsupportedChange(reason, hint="check the disk, then resync the table") from None
