"""Objects as files below a directory, durable before a write returns.

Invariant: when `put` or `create` returns, the file, its folder and every folder made on the way
have been synced, in that order; a create links a complete, synced file into place, so no reader and
no crash sees half an object. No path leaves the root, through symbolic links neither. It must not
sync the same file again after an error: the kernel may then report success for pages it dropped
(fsync(2); PostgreSQL: Reliability). A file whose sync failed is thrown away and written anew; after
a folder's sync failed this store writes nothing more. A full disk is StoreUnavailable: the pipeline
pauses and loses nothing. A read-only or forbidden one is StoreRefused.
"""

import contextlib
import errno
import os
import stat
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from sluice import faults
from sluice.errors import ObjectExists, ObjectMissing, StoreRefused, StoreUnavailable
from sluice.store.base import TEMPORARY_PREFIX, checked_key, checked_prefix

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors that may pass without anyone changing a path, a right or a mount. All others are refusals."""


class LocalStore:
    """ObjectStore over a directory, which is created by the first write."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._lock = threading.Lock()
        self._durable: set[Path] = set()
        self._broken: Path | None = None

    def get(self, key: str) -> bytes:
        with self._translated("get", key):
            try:
                descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with os.fdopen(descriptor, "rb") as file:
                    return file.read()
            except _ABSENT as error:
                raise ObjectMissing(f"get of {key!r} in {self.describe()}: no such object") from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._translated("get", key):
            try:
                descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with os.fdopen(descriptor, "rb") as file:
                    file.seek(start)
                    return file.read(length)
            except _ABSENT as error:
                raise ObjectMissing(f"get of {key!r} in {self.describe()}: no such object") from error

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._translated("put", key):
            faults.point("store.put.before")
            path = self._path(key)
            temporary = self._write_temporary(path.parent, data)
            try:
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._sync_folder(path.parent)
            faults.point("store.put.after")

    def create(self, key: str, data: bytes | memoryview) -> None:
        with self._translated("create", key):
            faults.point("store.create.before")
            path = self._path(key)
            temporary = self._write_temporary(path.parent, data)
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                self._sync_folder(path.parent)
                raise ObjectExists(f"create of {key!r} in {self.describe()}: something is there") from error
            finally:
                temporary.unlink(missing_ok=True)
            self._sync_folder(path.parent)
            faults.point("store.create.after")

    def size(self, key: str) -> int | None:
        with self._translated("size", key):
            try:
                status = os.lstat(self._path(key))
            except _ABSENT:
                return None
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        with self._translated("list", checked_prefix(prefix)):
            start = self._inside(self._root / prefix)
            skip = len(str(self._root)) + 1
            return iter(sorted(key for path in _files(str(start)) if (key := path[skip:]) > after))

    def delete(self, key: str) -> None:
        with self._translated("delete", key), contextlib.suppress(*_ABSENT):
            self._path(key).unlink()

    def describe(self) -> str:
        return f"file://{self._root}/"

    def _path(self, key: str) -> Path:
        path = self._root / checked_key(key)
        self._inside(path.parent)
        return path

    def _inside(self, folder: Path) -> Path:
        """`folder`, if no symbolic link lies between it and the root."""
        if os.path.realpath(folder) != str(folder):
            raise StoreRefused(
                f"a symbolic link lies below {self.describe()}",
                hint="replace the link by what it points to, or move the root",
            )
        return folder

    def _write_temporary(self, folder: Path, data: bytes | memoryview) -> Path:
        """A complete, synced file in `folder` under a name that no listing shows. Nothing is left
        behind when it raises.
        """
        if self._broken is not None:
            raise StoreRefused(
                f"{self._broken} could not be synced earlier, so nothing written there can be trusted",
                hint="check the disk, then restart",
            )
        self._make_durable(folder)
        path = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                rest = memoryview(data).cast("B")
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _make_durable(self, folder: Path) -> None:
        """Creates `folder` and what is missing above it, and syncs each new name, once per process:
        another process may have made it a moment ago.
        """
        if folder in self._durable:
            return
        with self._lock:
            above = [path for path in reversed(self._root.parents) if not path.exists()]
            below = folder.relative_to(self._root).parts
            inside = [self._root.joinpath(*below[:depth]) for depth in range(len(below) + 1)]
            for path in [*above, *inside]:
                if path in self._durable:
                    continue
                existed = path.exists()
                path.mkdir(exist_ok=True)
                try:
                    self._sync_folder(path.parent)
                except PermissionError:
                    # The folder above an existing root may belong to someone else; its owner made
                    # the root durable.
                    if path != self._root or not existed:
                        raise
                self._durable.add(path)

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError:
            self._broken = folder
            raise
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"{operation} of {key!r} in {self.describe()}: {error.strerror or 'failed'}"
            if error.errno in _PASSING or error.errno is None:
                raise StoreUnavailable(what, hint="free space or check the disk") from error
            raise StoreRefused(what, hint="check the directory, its owner, its permissions and its mount") from error


def _files(folder: str) -> Iterator[str]:
    """Paths of the regular files below `folder`, in no order. Folders that vanish meanwhile, links
    and unfinished writes are passed over.
    """
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(TEMPORARY_PREFIX)]
    except _ABSENT:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path
