"""The files of one lake table, read and written without Spark."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import ApplyError, ObjectMissing, StoreError
from sluice.store.base import ObjectStore
from sluice_spark.lake.commit_way import NotDirect

_AHEAD = 64 * 1024
"""Read with a file's end: the footers of most files fit."""
_HYBRID = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""With these Spark says that it counted days before 1582 in the Julian calendar."""


class TableFolder:
    """The folder `prefix` (with its slash) of the lake's store."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @property
    def name(self) -> str:
        """The same for two folders only if they are the same."""
        return self._prefix

    def put(self, path: str, content: bytes) -> None:
        """Stores a new file, durable when it returns. Raises StoreError."""
        self._store.put(self._prefix + path, content)

    def delete(self, path: str) -> None:
        """Removes a file that no version of the table has."""
        self._store.delete(self._prefix + path)

    def discard(self, paths: Iterable[str]) -> None:
        """Removes files that no version of the table will have, as far as the store lets it: what stays is left to
        VACUUM.
        """
        for path in paths:
            with suppress(StoreError):
                self.delete(path)

    def size(self, path: str) -> int | None:
        """Bytes of a file, None if there is none. Raises StoreError."""
        return self._store.size(self._prefix + path)

    def paths(self, below: str = "") -> Iterator[str]:
        """The files that a listing finds, at any depth, below the folder `below` (with its slash). Raises
        StoreError.
        """
        for key in self._store.list(self._prefix + below):
            yield key.removeprefix(self._prefix)

    def read(self, path: str, start: int, length: int) -> bytes:
        """Bytes of a file whose path is spelled as in the log, decoded."""
        try:
            data = self._store.get_range(self._prefix + path, start, length)
        except ObjectMissing as error:
            raise ApplyError(
                "a file of the lake table is missing",
                hint="restore the lake's files, or remove the table's folder and resync the table",
            ) from error
        if len(data) != length:
            raise ApplyError("a file of the lake table is shorter than its log says")
        return data

    def columns(self, path: str, size: int, names: Sequence[str]) -> pa.Table:
        """The columns `names` of the data file `path`, as the log spells it, which has `size` bytes.
        A column that the file lacks is left out. Raises NotDirect when only Spark knows their values.
        """
        file, there = self._opened(path, size, names)
        return file.read(columns=there, use_threads=False)

    def row_groups(self, path: str, size: int, names: Sequence[str]) -> Iterator[tuple[int, Callable[[], pa.Table]]]:
        """The same file row group by row group: how many rows each has, and how its columns are read."""
        file, there = self._opened(path, size, names)
        for number in range(file.num_row_groups):
            yield (
                file.metadata.row_group(number).num_rows,
                partial(file.read_row_group, number, there, use_threads=False),
            )

    def _opened(self, path: str, size: int, names: Sequence[str]) -> tuple[pq.ParquetFile, list[str]]:
        if urlsplit(path).scheme or path.startswith("/"):
            raise NotDirect("a data file lies outside of the table's folder")
        # Nanoseconds, which Arrow makes of Spark's old form, hold the years 1678 to 2261 only.
        file = pq.ParquetFile(
            pa.PythonFile(_Ranges(self, unquote(path), size)), pre_buffer=True, coerce_int96_timestamp_unit="us"
        )
        schema = file.schema_arrow
        there = [name for name in names if name in schema.names]
        is_hybrid = not (file.metadata.metadata or {}).keys().isdisjoint(_HYBRID)
        if is_hybrid and any(_is_temporal(schema.field(name).type) for name in there):
            raise NotDirect("a data file counts days in the calendar of old versions of Spark")
        return file, there


def _is_temporal(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_is_temporal(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind))


class _Ranges(io.RawIOBase):
    """A file of known size as Arrow reads it: piece by piece, its end first."""

    def __init__(self, folder: TableFolder, path: str, size: int) -> None:
        super().__init__()
        self._folder, self._path, self._size = folder, path, size
        self._place = 0
        self._tail_start = max(0, size - _AHEAD)
        self._tail = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._place + size)
        start, self._place = self._place, max(end, self._place)
        if start >= end:
            return b""
        if start < self._tail_start:
            return self._folder.read(self._path, start, end - start)
        if not self._tail:
            self._tail = self._folder.read(self._path, self._tail_start, self._size - self._tail_start)
        return self._tail[start - self._tail_start : end - self._tail_start]
