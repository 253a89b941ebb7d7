"""A commit without a Spark job: find the rows that go by their keys, write the rows that come, mark
the old ones in deletion vectors, commit all of it at once.

Owns: every decision rests on one version of the table, the one that Delta's transaction read. Whatever
somebody else commits after it is a conflict, and the next attempt looks again. A key that two rows
have, or a value that is to be kept and has no row, stops the table. What was written for a commit that
was refused is deleted; after a crash it is an orphan that VACUUM collects. (Delta protocol: Add File
and Remove File, Deletion Vectors.)
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sluice import faults
from sluice.errors import StoreError, UnsupportedChange
from sluice_spark.fold.fold import DELETED, MATCH
from sluice_spark.fold.row_identity import Claims
from sluice_spark.lake.commit_way import DIRECT, NotDirect
from sluice_spark.lake.direct.actions import Prepared, metrics, removal, with_vector
from sluice_spark.lake.direct.compaction import PACKED, ROUND_BYTES, FileSize, is_sparse, worth_joining
from sluice_spark.lake.direct.data_files import as_stored, data_file, in_files, physical, with_all_columns
from sluice_spark.lake.direct.kept_values import with_kept_values
from sluice_spark.lake.direct.key_cache import KeyCache
from sluice_spark.lake.direct.key_search import FileKeys, Found, KeyColumns, Numbers, WindowKeys
from sluice_spark.lake.direct.live_files import LiveFile, LiveFiles
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.direct.vectors import Positions, VectorFile, read_vector
from sluice_spark.lake.failures import two_rows_of_one_key
from sluice_spark.lake.layout import TableLayout
from sluice_spark.lake.plan import CommitPlan, MergePlan, RowsMergePlan


@dataclass(frozen=True, slots=True)
class Hit:
    """Rows of one data file whose keys are in a window: their positions, and the window's rows."""

    file: LiveFile
    positions: Numbers
    ordinals: Numbers


class DirectTable:
    """Direct commits to the lake table in `folder`, from one thread at a time; another one may look
    ahead meanwhile.
    """

    def __init__(self, folder: TableFolder, cache: KeyCache) -> None:
        self._folder = folder
        self._cache = cache
        self._live = LiveFiles()
        self._key: KeyColumns | None = None
        """Of the last merge."""

    @property
    def files(self) -> int:
        """How many live files it keeps."""
        return len(self._live.by_path)

    def prepare(
        self,
        transaction: DeltaTransaction,
        plan: CommitPlan,
        portions: Iterable[pa.Table],
        *,
        found: Found | None = None,
    ) -> Prepared:
        """Writes the files of `plan` with the rows of `portions`, no two of which have the same key.
        What was `found` for the rows of one of them is not looked for again. Raises NotDirect before
        anything is written, UnsupportedChange, StoreError; nothing is left then.
        """
        prepared = Prepared(_operation(plan), reads=plan.action != "append")
        with prepared.seconds.phase("find"):
            layout = self._live.follow(transaction)
            if {column.name for column in layout.columns} != set(plan.lake_columns):
                raise NotDirect("the lake table has other columns than the window")
            search = self._search(plan, layout)
        try:
            self._prepare(prepared, plan, (search, found), layout, portions)
        except BaseException:
            self.abandon(prepared)
            raise
        return prepared

    def prepare_table(
        self, transaction: DeltaTransaction, schema: str, rows: pa.Table, *, properties: Mapping[str, str]
    ) -> Prepared:
        """Makes the table with the columns of `schema` (a struct in Spark's JSON), the properties and `rows`; a
        column that these lack is NULL. Raises NotDirect before anything is written, StoreError; nothing is
        left then.
        """
        if transaction.version >= 0:
            raise NotDirect("there is a table already")
        transaction.make_table(schema, properties=properties)
        layout = self._live.begin(transaction)
        prepared, counts = Prepared("overwrite", reads=False), _counts()
        try:
            with prepared.seconds.phase("write"):
                self._write(prepared, with_all_columns(rows, layout), layout, counts)
            faults.point("apply.direct.data_written")
        except BaseException:
            self.abandon(prepared)
            raise
        prepared.metrics = metrics(prepared, counts, vectors=0)
        return prepared

    def has_small_files(self, version: int) -> bool:
        """Whether `version` of the table has files that are worth writing anew, as far as is known."""
        return self._live.version == version and bool(worth_joining(map(_size, self._live)))

    def prepare_compaction(self, transaction: DeltaTransaction) -> Prepared | None:
        """Writes small files anew as one, None when it is not worth it. The rows stay the same.
        Raises NotDirect, UnsupportedChange, StoreError; nothing is left then.
        """
        layout = self._live.follow(transaction)
        chosen = [self._live.by_path[path] for path in worth_joining(map(_size, self._live))]
        if not chosen:
            return None
        wanted = len(chosen)
        faults.point("apply.join.before")
        chosen, parts = self._read_some(chosen, layout)
        if len(chosen) == 1 < wanted and not is_sparse(_size(chosen[0])):
            return None
        prepared = Prepared("optimize", reads=False)
        counts = _counts()
        try:
            joined = pa.concat_tables(parts)
            if len(joined):
                self._put_file(prepared, joined, layout, counts, changes=False)
            faults.point("apply.join.data_written")
        except BaseException:
            self.abandon(prepared)
            raise
        for file in chosen:
            prepared.actions.append({"remove": {**removal(file.add), "dataChange": False}})
            prepared.gone.append(file.path)
        prepared.metrics = {
            "numAddedFiles": len(prepared.files),
            "numAddedBytes": counts["bytes"],
            "numRemovedFiles": len(chosen),
            "numRemovedBytes": sum(int(file.add["size"]) for file in chosen),
        }
        return prepared

    def _read_some(self, files: list[LiveFile], layout: TableLayout) -> tuple[list[LiveFile], list[pa.Table]]:
        """The first of `files`, at least one, whose rows fit in memory together, and these rows."""
        parts: list[pa.Table] = []
        held = 0
        for file in files:
            rows = self._alive(file, layout)
            file.memory = rows.nbytes * file.rows // max(len(rows), 1)
            held += rows.nbytes
            if parts and held > PACKED * ROUND_BYTES:
                break
            parts.append(rows)
        return files[: len(parts)], parts

    def _alive(self, file: LiveFile, layout: TableLayout) -> pa.Table:
        """The rows of a data file that are not removed, in the columns of a new one."""
        names = [column.field.name for column in layout.columns]
        stored = self._folder.columns(file.path, int(file.add["size"]), names)
        if len(stored) != file.rows:
            raise UnsupportedChange("a data file of the lake table has other rows than its log says")
        removed = self._removed(file)
        if len(removed):
            alive = np.ones(len(stored), dtype=bool)
            alive[removed] = False
            stored = stored.filter(pa.array(alive))
        arrays = [
            as_stored(stored[column.field.name], column.field.type)
            if column.field.name in stored.column_names
            else pa.nulls(len(stored), column.field.type)
            for column in layout.columns
        ]
        return pa.Table.from_arrays(arrays, schema=layout.arrow)

    def file_count(self, version: int) -> int | None:
        """Data files in the table's `version`, None when that is not known without a look."""
        return len(self._live.by_path) if self._live.version == version else None

    def landed(self, prepared: Prepared, version: int) -> None:
        """`prepared` was committed as `version`."""
        self._live.landed(version, gone=prepared.gone, files=prepared.files)
        if self._key is not None:
            key = self._key
            self._cache.forget(self._name(path, key) for path in prepared.gone)

    def abandon(self, prepared: Prepared) -> None:
        """`prepared` was refused, and no version has its files."""
        for path in prepared.written:
            with suppress(StoreError):
                self._folder.delete(path)

    def _search(self, plan: CommitPlan, layout: TableLayout) -> KeyColumns | None:
        if not isinstance(plan.action, MergePlan):
            if isinstance(plan.action, RowsMergePlan):
                raise NotDirect("the table has no key")
            return None
        return KeyColumns.of(plan.action.schema, layout)

    def _prepare(
        self,
        prepared: Prepared,
        plan: CommitPlan,
        search: tuple[KeyColumns | None, Found | None],
        layout: TableLayout,
        portions: Iterable[pa.Table],
    ) -> None:
        taken: dict[str, list[Numbers]] = defaultdict(list)
        counts = _counts()
        key, found = search
        self._key = key or self._key
        for portion in portions:
            rows = portion
            if key is not None and isinstance(plan.action, MergePlan):
                with prepared.seconds.phase("find"):
                    known = self._found(portion, plan.action, key, found)
                    rows = self._replaced(plan.action, known, layout, taken, counts)
            counts["source"] += len(portion)
            with prepared.seconds.phase("write"):
                self._write(prepared, rows, layout, counts)
        faults.point("apply.direct.data_written")
        with prepared.seconds.phase("write"):
            if plan.action == "overwrite":
                self._remove_all(prepared)
            vectors = self._mark(prepared, taken)
        faults.point("apply.direct.vectors_written")
        prepared.metrics = metrics(prepared, counts, vectors=vectors)

    def _replaced(
        self,
        plan: MergePlan,
        found: Found,
        layout: TableLayout,
        taken: dict[str, list[Numbers]],
        counts: dict[str, int],
    ) -> pa.Table:
        """The new rows of a portion of a merge; `taken` gets the positions that they replace."""
        rows = found.rows
        hits = self._hits(found)
        matched = np.zeros(len(rows), dtype=np.int64)
        for hit in hits:
            np.add.at(matched, hit.ordinals, 1)
            taken[hit.file.path].append(hit.positions)
        if bool((matched > 1).any()):
            raise two_rows_of_one_key(plan.schema.qualified_name)
        deleted = rows[DELETED].to_numpy()
        counts["matched"] += int(matched.sum())
        counts["deleted"] += int((deleted & (matched > 0)).sum())
        if plan.kept:
            rows = with_kept_values(rows, [_old(self._folder, hit) for hit in hits], plan, layout)
        return rows.filter(pa.array(~deleted)) if bool(deleted.any()) else rows

    def search_ahead(self, plan: CommitPlan, portions: Iterable[pa.Table]) -> Found | None:
        """Where the keys of the first of `portions` are in the data files that are known now, for a
        window that comes next; None where nobody will ask. From any thread. Raises NotDirect,
        UnsupportedChange, StoreError.
        """
        layout, rows = self._live.layout, next(iter(portions), None)
        if layout is None or rows is None or not isinstance(plan.action, MergePlan):
            return None
        found = self._found(rows, plan.action, KeyColumns.of(plan.action.schema, layout), None)
        files = [file for file in self._live.known() if found.keys.may_be_in(file.low, file.high)]
        return replace(found, by_path={file.path: self._positions(file, found) for file in files})

    @staticmethod
    def _found(rows: pa.Table, plan: MergePlan, key: KeyColumns, found: Found | None) -> Found:
        if found is not None and found.rows is rows and found.key == key:
            return found
        matches = rows[MATCH].to_numpy() if plan.unmatched else np.ones(len(rows), dtype=bool)
        return Found(rows, key, WindowKeys(rows, np.flatnonzero(matches), key), {})

    def _positions(self, file: LiveFile, found: Found) -> tuple[Numbers, Numbers]:
        key = found.key
        return found.keys.find(self._cache.get(self._name(file.path, key), lambda: self._read_keys(file, key)))

    def _hits(self, found: Found) -> list[Hit]:
        hits = []
        for file in self._live:
            if not found.keys.may_be_in(file.low, file.high):
                continue
            positions, ordinals = found.by_path.get(file.path) or self._positions(file, found)
            if len(positions):
                gone = self._removed(file)
                alive = ~_among(positions, gone)
                if bool(alive.any()):
                    hits.append(Hit(file, positions[alive], ordinals[alive]))
        return hits

    def _read_keys(self, file: LiveFile, key: KeyColumns) -> FileKeys:
        return FileKeys.read(self._folder.columns(file.path, int(file.add["size"]), key.stored), key)

    def _removed(self, file: LiveFile) -> Positions:
        if file.removed is None:
            file.removed = read_vector(file.add["deletionVector"], self._folder.read)
        return file.removed

    def _write(self, prepared: Prepared, rows: pa.Table, layout: TableLayout, counts: dict[str, int]) -> None:
        if len(rows):
            for part in in_files(physical(rows, layout)):
                self._put_file(prepared, part, layout, counts)

    def _put_file(
        self, prepared: Prepared, table: pa.Table, layout: TableLayout, counts: dict[str, int], *, changes: bool = True
    ) -> None:
        keys = self._key.physical if self._key is not None else ()
        path, content, add = data_file(table, layout, keys=keys, changes=changes)
        prepared.written.append(path)
        self._folder.put(path, content)
        prepared.actions.append({"add": add})
        prepared.files.append(LiveFile.of(add, memory=table.nbytes))
        counts["rows"] += len(table)
        counts["bytes"] += len(content)

    def _remove_all(self, prepared: Prepared) -> None:
        for file in self._live:
            prepared.actions.append({"remove": removal(file.add)})
            prepared.gone.append(file.path)

    def _mark(self, prepared: Prepared, taken: Mapping[str, list[Numbers]]) -> int:
        """Removes rows of the live files. Returns how many files got a vector."""
        vectors = VectorFile()
        marked = 0
        for path, parts in taken.items():
            file = self._live.by_path[path]
            removed = np.sort(np.concatenate([self._removed(file), *parts]))
            prepared.actions.append({"remove": removal(file.add)})
            if int(removed[-1]) >= file.rows or bool((removed[1:] == removed[:-1]).any()):
                raise UnsupportedChange("a data file of the lake table has other rows than its log says")
            if len(removed) == file.rows:
                prepared.gone.append(path)
                continue
            add = with_vector(file.add, vectors.add(removed))
            prepared.actions.append({"add": add})
            prepared.files.append(LiveFile.of(add, removed=removed, memory=file.memory))
            marked += 1
        if vectors:
            prepared.written.append(vectors.path)
            self._folder.put(vectors.path, vectors.content)
        return marked

    def _name(self, path: str, key: KeyColumns) -> str:
        """What the cache calls the keys of a data file: a table may get another key over the same files."""
        return f"{self._folder.name}{path} {' '.join(key.stored)}"


@dataclass(frozen=True, slots=True)
class DirectCommit:
    """A commit to `table` that `prepare` prepares."""

    way: ClassVar[str] = DIRECT
    table: DirectTable
    prepare: Callable[[DeltaTransaction], Prepared | None]

    def landed(self, prepared: Prepared, version: int) -> None:
        """See DirectTable."""
        self.table.landed(prepared, version)

    def abandon(self, prepared: Prepared) -> None:
        """See DirectTable."""
        self.table.abandon(prepared)


def _operation(plan: CommitPlan) -> str:
    return plan.action if isinstance(plan.action, str) else "merge"


def _old(folder: TableFolder, hit: Hit) -> tuple[Any, Numbers, Numbers]:
    def read(names: list[str]) -> pa.Table:
        return folder.columns(hit.file.path, int(hit.file.add["size"]), names)

    return read, hit.positions, hit.ordinals


def _among(positions: Numbers, others: Positions) -> Claims:
    """Which of `positions` are among `others`, which ascend."""
    if not len(others):
        return np.zeros(len(positions), dtype=bool)
    places = np.minimum(np.searchsorted(others, positions), len(others) - 1)
    found: Claims = others[places] == positions
    return found


def _counts() -> dict[str, int]:
    return {"source": 0, "matched": 0, "deleted": 0, "rows": 0, "bytes": 0}


def _size(file: LiveFile) -> FileSize:
    return FileSize(file.path, int(file.add["size"]), file.rows, file.removed_rows, file.memory)
