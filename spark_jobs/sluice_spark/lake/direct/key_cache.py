"""Keys of data files, kept between windows: in memory up to a ceiling, the rest on local disk.

Data files never change, so what is kept never is wrong; and nothing depends on it: what is missing is
read from the data file again.
"""

import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from sluice_spark.lake.direct.key_search import FileKeys

ON_DISK = 8
"""The ceiling on disk, as a multiple of the ceiling in memory."""


class KeyCache:
    """The keys of data files of many tables. Thread-safe. `hits` and `misses` count searches."""

    def __init__(self, ceiling: int) -> None:
        """`ceiling` is in bytes; 0 keeps nothing."""
        self._ceiling = ceiling
        self._lock = threading.Lock()
        self._here: OrderedDict[str, FileKeys] = OrderedDict()
        self._used = 0
        self._there: OrderedDict[str, tuple[Path, int]] = OrderedDict()
        self._used_there = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.hits = self.misses = 0

    @property
    def used(self) -> int:
        """Bytes in memory."""
        return self._used

    @property
    def used_on_disk(self) -> int:
        """Bytes in files."""
        return self._used_there

    def get(self, name: str, read: Callable[[], FileKeys]) -> FileKeys:
        """The keys of the file `name`, from `read` where they are not kept."""
        with self._lock:
            found = self._here.get(name)
            if found is not None:
                self._here.move_to_end(name)
                self.hits += 1
                return found
            spilled = self._there.get(name)
        keys = _mapped(spilled[0]) if spilled is not None else None
        if keys is not None:
            with self._lock:
                self.hits += 1
            return keys
        keys = read()
        with self._lock:
            self.misses += 1
            self._drop(name)
            self._keep(name, keys)
        return keys

    def forget(self, names: Iterable[str]) -> None:
        """Drops the keys of files that are no longer part of their table."""
        with self._lock:
            for name in names:
                found = self._here.pop(name, None)
                if found is not None:
                    self._used -= found.table.nbytes
                self._drop(name)

    def close(self) -> None:
        """Removes what lies on disk."""
        with self._lock:
            self._here.clear()
            self._there.clear()
            self._used = self._used_there = 0
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def _keep(self, name: str, keys: FileKeys) -> None:
        size = keys.table.nbytes
        if name in self._here or size > self._ceiling:
            return
        self._here[name] = keys
        self._used += size
        while self._used > self._ceiling:
            oldest, other = self._here.popitem(last=False)
            self._used -= other.table.nbytes
            self._spill(oldest, other)

    def _spill(self, name: str, keys: FileKeys) -> None:
        if name in self._there:
            return
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="sluice-keys-", ignore_cleanup_errors=True)
        except OSError:
            return
        path = Path(self._folder.name) / uuid.uuid4().hex
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, keys.table.schema) as writer:
                writer.write_table(keys.table)
        except OSError:
            # A full disk keeps no part of it.
            path.unlink(missing_ok=True)
            return
        self._there[name] = (path, keys.table.nbytes)
        self._used_there += keys.table.nbytes
        while self._used_there > ON_DISK * self._ceiling:
            self._drop(next(iter(self._there)))

    def _drop(self, name: str) -> None:
        path, size = self._there.pop(name, (None, 0))
        self._used_there -= size
        if path is not None:
            path.unlink(missing_ok=True)


def _mapped(path: Path) -> FileKeys | None:
    """Keys from disk, None when they cannot be read. The pages belong to the system, which takes them
    back when it needs them.
    """
    try:
        with pa.memory_map(str(path)) as source:
            return FileKeys(pa.ipc.open_file(source).read_all())
    except (OSError, pa.ArrowException):
        return None
