"""Rows that are followed from version to version: their ids, and what a reader of the change data feed sees of them.

Owns that a row which replaces another one, or is copied, has the id of that one. A file states the ids of
rows that were moved there in a hidden column; all other rows have the id that follows from the file and their
position.

Owns too that every row that a vector takes away is stated once where a commit replaces rows. One that only adds and
removes rows needs nothing: readers see that from its files and vectors. One that replaces rows states every change:
the new rows in the data files that have them anyway, which say in a hidden column what each row is, and the old ones
in files of their own below `_change_data`. (Delta protocol: Row Tracking, Change Data Files, Add CDC File.)
"""

import uuid
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import UnsupportedChange
from sluice_spark.fold.row_identity import Claims, Numbers, whole
from sluice_spark.lake.direct.data_files import FILE_BYTES, as_stored, parquet
from sluice_spark.lake.direct.kept_values import old_rows
from sluice_spark.lake.direct.key_cache import KeyCache
from sluice_spark.lake.direct.key_search import FileKeys
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.vectors import Positions
from sluice_spark.lake.layout import CHANGE, ROW_ID, ROW_VERSION, RowTracking, TableLayout

Taken = dict[str, list[tuple[Numbers, Claims]]]
"""Rows that go, by the path of a data file: positions, and which of them have no other row in their place."""
INSERTED, UPDATED, BEFORE, DELETED = "insert", "update_postimage", "update_preimage", "delete"
_NOT_STATED = -1


class RowIds:
    """Ids of the rows of data files in `folder`; what files state of them is kept in `cache`."""

    def __init__(self, folder: TableFolder, cache: KeyCache) -> None:
        self._folder = folder
        self._cache = cache

    def of(self, file: LiveFile, positions: Numbers, tracking: RowTracking) -> Numbers:
        """The ids of the rows at `positions` of `file`. Raises NotDirect, StoreError."""
        kept = self._cache.get(self.name(file.path, tracking), lambda: self._read(file, tracking)).table
        return ids_of(kept, ROW_ID, positions, default=file.first_id + positions)

    def name(self, path: str, tracking: RowTracking) -> str:
        """What the cache calls the ids that the file at `path` states."""
        return f"{self._folder.name}{path} {tracking.ids}"

    def _read(self, file: LiveFile, tracking: RowTracking) -> FileKeys:
        stored = self._folder.columns(file.path, int(file.add["size"]), [tracking.ids])
        if tracking.ids not in stored.column_names:
            return FileKeys(pa.table({}))
        return FileKeys(pa.table({ROW_ID: whole(stored[tracking.ids]).fill_null(_NOT_STATED)}))


def ids_of(stored: pa.Table, name: str, positions: Numbers, *, default: Numbers | int) -> Numbers:
    """What the rows at `positions` of `stored` have in the column `name`; `default` for those that have
    nothing there.
    """
    if name not in stored.column_names:
        return np.zeros(len(positions), dtype=np.int64) + default
    found = stored[name].fill_null(_NOT_STATED).to_numpy()[positions]
    return np.where(found == _NOT_STATED, default, found)


def copied(folder: TableFolder, file: LiveFile, removed: Positions, layout: TableLayout) -> pa.Table:
    """The rows of a data file of `folder` that are not `removed`, in the columns of a new one: with their ids, and the
    versions that made them, where the table tracks them. Raises NotDirect, UnsupportedChange, StoreError.
    """
    hidden = layout.tracking
    names = layout.arrow.names + ([hidden.ids, hidden.versions] if hidden is not None else [])
    stored = folder.columns(file.path, int(file.add["size"]), names)
    if len(stored) != file.rows:
        raise UnsupportedChange("a data file of the lake table has other rows than its log says")
    positions = np.arange(len(stored), dtype=np.int64)
    if len(removed):
        positions = np.delete(positions, removed)
        stored = stored.take(pa.array(positions))
    arrays = [
        as_stored(stored[column.field.name], column.field.type)
        if column.field.name in stored.column_names
        else pa.nulls(len(stored), column.field.type)
        for column in layout.columns
    ]
    rows = pa.Table.from_arrays(arrays, schema=layout.arrow)
    if hidden is None:
        return rows
    each = np.arange(len(rows), dtype=np.int64)
    ids = ids_of(stored, hidden.ids, each, default=file.first_id + positions)
    versions = ids_of(stored, hidden.versions, each, default=file.made_by)
    rows = rows.append_column(layout.hidden[ROW_ID], pa.array(ids))
    return rows.append_column(layout.hidden[ROW_VERSION], pa.array(versions))


def optional(ids: Numbers) -> pa.Array:
    """`ids` with NULL for rows that have none (-1)."""
    return pa.array(ids, pa.int64(), mask=ids == _NOT_STATED)


def kinds_of_new(matched: Claims) -> pa.Array:
    """What new rows are, of which those that are `matched` replace another one."""
    return pa.array(np.where(matched, UPDATED, INSERTED))


def inserted(rows: pa.Table, layout: TableLayout) -> pa.Table:
    """`rows`, which replace none of the lake, for a table of `layout`."""
    return rows.append_column(CHANGE, kinds_of_new(np.zeros(len(rows), dtype=bool))) if layout.feeds else rows


def action(path: str, size: int) -> dict[str, Any]:
    """The action that says that the file at `path` has changes."""
    return {"path": path, "partitionValues": {}, "size": size, "dataChange": False}


class OldRows:
    """The rows of a table of `layout` that go, in files of `folder`. The path of each file joins `orphans` before it is
    stored.
    """

    def __init__(self, folder: TableFolder, layout: TableLayout, orphans: list[str]) -> None:
        self._folder = folder
        self._layout = layout
        self._orphans = orphans
        self._held: list[pa.Table] = []
        self._actions: list[dict[str, Any]] = []

    def take(self, path: str, size: int, positions: Numbers, gone: Claims) -> None:
        """The rows at `positions` of the data file `path` go; those `gone` are deleted, the others replaced. Raises
        NotDirect, StoreError.
        """
        order = np.argsort(positions)
        positions, gone = positions[order], gone[order]
        start = 0
        for length, read in self._folder.row_groups(path, size, self._layout.arrow.names):
            low, high = np.searchsorted(positions, [start, start + length]).tolist()
            if low < high:
                rows = old_rows(read(), pa.array(positions[low:high] - start), self._layout.arrow)
                kinds = pa.array(np.where(gone[low:high], DELETED, BEFORE))
                self._held.append(rows.append_column(self._layout.hidden[CHANGE], kinds))
                self._store(at_least=FILE_BYTES)
            start += length

    def actions(self) -> list[dict[str, Any]]:
        """Stores what is left, and gives the actions of all files."""
        self._store(at_least=1)
        return self._actions

    def _store(self, *, at_least: int) -> None:
        if not self._held or sum(table.nbytes for table in self._held) < at_least:
            return
        content = parquet(pa.concat_tables(self._held))
        self._held = []
        path = f"_change_data/cdc-00000-{uuid.uuid4()}.c000.snappy.parquet"
        self._orphans.append(path)
        self._folder.put(path, content)
        self._actions.append(action(path, len(content)))
