"""Small data files of one table, written anew as one beside its windows, and put in their place between two of them.

Owns that what is written beside can be useless, never wrong. Data files never change, and rows are only ever removed
from them: those that windows remove meanwhile are removed from the new file as well, by a vector. It is dropped
where that does not hold, or where the table got other columns. Nothing of it is in the table before the commit that
takes it in, which is a commit like any other: it is refused when somebody else came in between. What is not taken in
soon is deleted, long before VACUUM would take it for a file that nobody needs. (Delta protocol: Add File and Remove
File, Deletion Vectors.)
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice import faults
from sluice_spark.lake.direct.compaction import PACKED, ROUND_BYTES, FileSize, is_sparse, worth_joining
from sluice_spark.lake.direct.data_files import FileWriter, Written
from sluice_spark.lake.direct.edit import Edit, with_vector
from sluice_spark.lake.direct.followed_rows import copied
from sluice_spark.lake.direct.live_files import LiveFile, LiveFiles
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.direct.vectors import Positions, VectorFile
from sluice_spark.lake.layout import TableLayout

LONGEST_SECONDS = 600.0
"""From the choice of files to the commit. VACUUM leaves alone what is younger than an hour."""


class AtOnce(Executor):
    """For who has no thread to spare, or ends soon: whatever is submitted is done by then."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future


@dataclass(frozen=True, slots=True)
class Part:
    """A data file of so many `rows`, of which those `removed` (ascending) are not in the joined one. `tracked` is what
    the ids of the others follow from.
    """

    path: str
    rows: int
    removed: Positions
    tracked: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of `parts`, one after the other, in one new file; none if there is no row. `began` is when the parts
    were chosen (monotonic).
    """

    parts: Sequence[Part]
    layout: TableLayout
    began: float
    written: Written = field(default_factory=Written)

    def removed(self, now: Mapping[str, Positions]) -> Positions | None:
        """The rows of the new file, ascending, that are removed while `now` are from the parts by path; a part that
        is not among them is gone with all its rows. None when a row came back.
        """
        found: list[Positions] = []
        start = 0
        for part in self.parts:
            alive = part.rows - len(part.removed)
            after = now.get(part.path)
            if after is None:
                found.append(np.arange(start, start + alive, dtype=np.int64))
            else:
                new = np.setdiff1d(after, part.removed, assume_unique=True)
                if len(new) != len(after) - len(part.removed):
                    return None
                found.append(new - np.searchsorted(part.removed, new) + start)
            start += alive
        return np.concatenate(found)


class Joining:
    """The joins of the table in `folder`, whose files are `live`: one at a time. `removed` says which rows of a live
    file are, `writer` writes new ones.
    """

    def __init__(
        self,
        folder: TableFolder,
        live: LiveFiles,
        *,
        removed: Callable[[LiveFile], Positions],
        writer: Callable[[TableLayout], FileWriter],
    ) -> None:
        self._folder = folder
        self._live = live
        self._removed = removed
        self._writer = writer
        self._under_way: Future[Joined | None] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def ready(self, version: int, beside: Executor | None) -> Joined | None:
        """What was joined, once; None while there is nothing. Begins to join in `beside` (None: at once) when `version`
        of the table has files that are worth it. Raises NotDirect, UnsupportedChange, StoreError where a join failed.
        """
        idle = self._under_way is None and not self._closed
        if idle and self._live.version == version and worth_joining(map(_size, self._live)):
            self._begin((beside or AtOnce()).submit(self._join))
        joined = self._taken()
        if joined is not None and time.monotonic() - joined.began > LONGEST_SECONDS:
            self.discard(joined)
            return None
        return joined

    def edit(self, base: DeltaTransaction, joined: Joined) -> Edit | None:
        """Puts what was joined in the place of its parts, on top of the version that `base` read. None where that is
        not possible any more: it is deleted then. Raises NotDirect, UnsupportedChange, StoreError.
        """
        try:
            layout = self._live.follow(base)
            files = self._live.by_path
            here = [files[part.path] for part in joined.parts if part.path in files]
            removed = joined.removed({file.path: self._removed(file) for file in here})
            tracked = {part.path: part.tracked for part in joined.parts}
            as_read = layout == joined.layout and all(tracked[file.path] == file.tracked for file in here)
            if removed is None or not as_read or not here or not self._is_there(joined):
                self.discard(joined)
                return None
            edit = Edit(base, "optimize", reads=False, layout=layout, removes=[file.add for file in here])
            if len(removed) == joined.written.rows:
                self.discard(joined)
                return edit
            edit.orphans += joined.written.paths
            (file,) = joined.written.files
            edit.written = Written([self._marked(file, removed, edit)], joined.written.rows, joined.written.bytes)
        except BaseException:
            self.discard(joined)
            raise
        return edit

    def _is_there(self, joined: Joined) -> bool:
        """Somebody may have run a VACUUM that keeps nothing."""
        return all(self._folder.size(file.path) == int(file.add["size"]) for file in joined.written.files)

    def discard(self, joined: Joined) -> None:
        """No version will have what was joined."""
        self._folder.discard(joined.written.paths)

    def close(self) -> None:
        """Nothing is joined any more. What nobody has taken is deleted, now or once it is there. From any thread."""
        with self._lock:
            self._closed = True
            under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._forget(under_way)

    def _begin(self, joining: Future[Joined | None]) -> None:
        with self._lock:
            if not self._closed:
                self._under_way = joining
                return
        self._forget(joining)

    def _taken(self) -> Joined | None:
        """What was joined, for the one who puts it in its place or deletes it: nobody else has it then."""
        with self._lock:
            under_way = self._under_way
            if under_way is None or not under_way.done():
                return None
            self._under_way = None
        return under_way.result()

    def _forget(self, under_way: Future[Joined | None]) -> None:
        if not under_way.cancel():
            under_way.add_done_callback(self._discard_result)

    def _discard_result(self, ended: Future[Joined | None]) -> None:
        # Whatever it met is of no use to anybody any more.
        with suppress(Exception):
            if (joined := ended.result()) is not None:
                self.discard(joined)

    def _marked(self, file: LiveFile, removed: Positions, edit: Edit) -> LiveFile:
        """The new file without the rows that were removed meanwhile."""
        if not len(removed):
            return file
        vectors = VectorFile()
        add = {**with_vector(file.add, vectors.add(removed)), "dataChange": False}
        edit.orphans.append(vectors.path)
        self._folder.put(vectors.path, vectors.content)
        return LiveFile.of(add, removed=removed, memory=file.memory)

    def _join(self) -> Joined | None:
        """In any thread."""
        began, layout = time.monotonic(), self._live.layout
        known = {file.path: file for file in self._live.known()}
        chosen = [known[path] for path in worth_joining(map(_size, known.values()))]
        if not chosen or layout is None:
            return None
        wanted = len(chosen)
        faults.point("apply.join.before")
        parts, rows = self._read_some(chosen, layout)
        if len(parts) == 1 < wanted and not is_sparse(_size(chosen[0])):
            return None
        joined = Joined(parts, layout, began)
        try:
            together = pa.concat_tables(rows)
            if len(together):
                self._writer(layout).put(together, joined.written, changes=False)
            faults.point("apply.join.data_written")
        except BaseException:
            self.discard(joined)
            raise
        return joined

    def _read_some(self, files: Sequence[LiveFile], layout: TableLayout) -> tuple[list[Part], list[pa.Table]]:
        """The first of `files`, at least one, whose rows fit in memory together, and these rows."""
        parts: list[Part] = []
        tables: list[pa.Table] = []
        held = 0
        for file in files:
            removed = self._removed(file)
            rows = copied(self._folder, file, removed, layout)
            file.memory = rows.nbytes * file.rows // max(len(rows), 1)
            held += rows.nbytes
            if parts and held > PACKED * ROUND_BYTES:
                break
            parts.append(Part(file.path, file.rows, removed, file.tracked))
            tables.append(rows)
        return parts, tables


def _size(file: LiveFile) -> FileSize:
    return FileSize(file.path, int(file.add["size"]), file.rows, file.removed_rows, file.memory)
