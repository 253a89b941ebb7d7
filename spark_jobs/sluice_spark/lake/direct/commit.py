"""A commit without a Spark job: find the rows that go by their keys, write the rows that come, mark
the old ones in deletion vectors, commit all of it at once.

Owns: every decision rests on one version of the table, the one that Delta's transaction read. Whatever
somebody else commits after it is a conflict, and the next attempt looks again. A key that two rows
have, or a value that is to be kept and has no row, stops the table. What was written for a commit that
was refused is deleted; after a crash it is an orphan that VACUUM collects. (Delta protocol: Add File
and Remove File, Deletion Vectors.)
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sluice import faults
from sluice_spark.fold.fold import DELETED, MATCH
from sluice_spark.lake.commit_way import DIRECT, NotDirect
from sluice_spark.lake.describing import Said
from sluice_spark.lake.direct.data_files import FILE_BYTES, FileWriter, with_all_columns
from sluice_spark.lake.direct.edit import Edit, with_vector
from sluice_spark.lake.direct.followed_rows import OldRows, RowIds, Taken, copied, inserted, kinds_of_new, optional
from sluice_spark.lake.direct.joining import Joining
from sluice_spark.lake.direct.kept_values import logical, old_rows, with_kept_values
from sluice_spark.lake.direct.key_cache import KeyCache
from sluice_spark.lake.direct.key_search import FileKeys, Found, KeyColumns, Numbers, WindowKeys
from sluice_spark.lake.direct.live_files import LiveFile, LiveFiles
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.direct.vectors import Positions, VectorFile, among, read_vector, removed_rows
from sluice_spark.lake.failures import columns_in_a_feed, two_rows_of_one_key
from sluice_spark.lake.layout import CHANGE, ROW_ID, Field, RowTracking, TableLayout
from sluice_spark.lake.plan import CommitPlan, MergePlan, RowsMergePlan
from sluice_spark.lake.rows_to_commit import HeldRows

FILLED_BYTES = 256 * 1024 * 1024
"""Files with more than that get the values of a new column by Spark: it writes them side by side."""


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
        self._ids = RowIds(folder, cache)
        self._key: KeyColumns | None = None
        """Of the last merge."""
        self.joining = Joining(folder, self._live, removed=self._removed, writer=self._writer)

    @property
    def files(self) -> int:
        """How many live files it keeps."""
        return len(self._live.by_path)

    def edit(
        self, base: DeltaTransaction, plan: CommitPlan, portions: Iterable[pa.Table], *, found: Found | None = None
    ) -> Edit:
        """Writes the files of `plan` with the rows of `portions`, no two of which have the same key.
        What was `found` for the rows of one of them is not looked for again. Raises NotDirect before
        anything is written, UnsupportedChange, StoreError; nothing is left then.
        """
        if isinstance(plan.action, MergePlan) and plan.action.sweep is not None:
            raise NotDirect("a TRUNCATE changes every row of the table")
        edit = Edit(base, plan.action if isinstance(plan.action, str) else "merge", reads=plan.action != "append")
        with edit.seconds.phase("find"):
            edit.layout = layout = self._live.follow(base)
            if {column.name for column in layout.columns} != set(plan.lake_columns):
                raise NotDirect("the lake table has other columns than the window")
            key = self._key_of(plan, layout)
        self._key = key or self._key
        with self._discarded_unless_whole(edit):
            self._fill(edit, plan, (key, found), portions)
        return edit

    def first_edit(self, base: DeltaTransaction, fields: Sequence[Field], rows: pa.Table, *, said: Said) -> Edit:
        """Makes the table with the columns `fields` and with `rows`; a column that these lack is NULL. It says of
        itself what is `said`. Raises NotDirect before anything is written, StoreError; nothing is left then.
        """
        if base.version >= 0:
            raise NotDirect("there is a table already")
        base.make_table(fields, said=said)
        layout = self._live.begin(base)
        edit = Edit(base, "overwrite", reads=False, layout=layout)
        with self._discarded_unless_whole(edit), edit.seconds.phase("write"):
            self._writer(layout).write(with_all_columns(rows, layout), edit.written)
            faults.point("apply.direct.data_written")
        return edit

    def filled_edit(self, base: DeltaTransaction, fields: Sequence[Field], values: Mapping[str, pa.Scalar]) -> Edit:
        """Gives the table the columns `fields`, among them those in `values`, which all of its rows have then: its
        files are written anew. Raises NotDirect before anything is written, UnsupportedChange, StoreError; nothing
        is left then.
        """
        old = self._live.follow(base)
        if sum(int(file.add["size"]) for file in self._live) > FILLED_BYTES:
            raise NotDirect("the table is too large to be written anew here")
        base.set_columns(fields)
        layout = base.layout()
        if old.feeds and not old.names.items() <= layout.names.items():
            raise columns_in_a_feed()
        edit = Edit(base, "overwrite", reads=True)
        gone = OldRows(self._folder, old, edit.orphans)
        writer = self._writer(layout)
        with self._discarded_unless_whole(edit), edit.seconds.phase("write"):
            held: list[pa.Table] = []
            for file in self._live:
                removed = self._removed(file)
                held.append(_filled(copied(self._folder, file, removed, old), layout, values))
                edit.removes.append(file.add)
                if old.feeds:
                    stays = np.delete(np.arange(file.rows, dtype=np.int64), removed)
                    gone.take(file.path, int(file.add["size"]), stays, np.zeros(len(stays), dtype=bool))
                if sum(table.nbytes for table in held) > FILE_BYTES:
                    writer.put(pa.concat_tables(held), edit.written)
                    held = []
            if held and (rows := pa.concat_tables(held)):
                writer.put(rows, edit.written)
            edit.replaced += gone.actions()
            faults.point("apply.direct.data_written")
        return edit

    def file_count(self, version: int) -> int | None:
        """Data files in the table's `version`, None when that is not known without a look."""
        return len(self._live.by_path) if self._live.version == version else None

    def landed(self, edit: Edit, version: int, tracked: Mapping[str, Mapping[str, int]]) -> None:
        """`edit`, whoever made it, was committed as `version` (-1: one that is not known). `tracked` is what Delta
        added to its files.
        """
        layout = self._live.layout
        if edit.layout is None or edit.layout != layout:
            version = -1
        gone = edit.gone
        self._live.landed(version, gone=gone, files=edit.adds, tracked=tracked)
        if self._key is not None:
            key = self._key
            self._cache.forget(self._name(path, key) for path in gone)
        if layout is not None and layout.tracking is not None:
            tracking = layout.tracking
            self._cache.forget(self._ids.name(path, tracking) for path in gone)

    def columns_landed(self, version: int) -> None:
        """A change of columns or properties was committed as `version` (-1: one that is not known). The files stay, so
        that Delta need not collect them again, which is a job of Spark.
        """
        self._live.columns_landed(version)

    @contextmanager
    def _discarded_unless_whole(self, edit: Edit) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._folder.discard([*edit.written.paths, *edit.orphans])
            raise
        edit.orphans += edit.written.paths

    def _key_of(self, plan: CommitPlan, layout: TableLayout) -> KeyColumns | None:
        if isinstance(plan.action, RowsMergePlan):
            raise NotDirect("the table has no key")
        return (
            KeyColumns.of(plan.action.schema, layout, only=plan.action.only)
            if isinstance(plan.action, MergePlan)
            else None
        )

    def _fill(
        self,
        edit: Edit,
        plan: CommitPlan,
        search: tuple[KeyColumns | None, Found | None],
        portions: Iterable[pa.Table],
    ) -> None:
        assert edit.layout is not None
        taken: Taken = defaultdict(list)
        key, found = search
        writer = self._writer(edit.layout)
        for portion in portions:
            rows = portion
            if key is not None and isinstance(plan.action, MergePlan):
                with edit.seconds.phase("find"):
                    rows = self._replaced(plan.action, self._found(portion, plan.action, key, found), edit, taken)
            edit.source += len(portion)
            with edit.seconds.phase("write"):
                writer.write(rows, edit.written)
        faults.point("apply.direct.data_written")
        with edit.seconds.phase("write"):
            if plan.action == "overwrite":
                edit.removes += [file.add for file in self._live]
            self._mark(edit, taken)
            if edit.layout.feeds and edit.matched > edit.deleted:
                self._state_old_rows(edit, taken)
        faults.point("apply.direct.vectors_written")

    def _replaced(self, plan: MergePlan, found: Found, edit: Edit, taken: Taken) -> pa.Table:
        """The new rows of a portion of a merge; `taken` gets the positions that they replace."""
        assert edit.layout is not None
        rows = found.rows
        hits = self._hits(found)
        matched = np.zeros(len(rows), dtype=np.int64)
        # What is settled goes, and other rows come: no row replaces another one.
        deleted = np.ones(len(rows), dtype=bool) if plan.settlement is not None else rows[DELETED].to_numpy()
        for hit in hits:
            np.add.at(matched, hit.ordinals, 1)
            taken[hit.file.path].append((hit.positions, deleted[hit.ordinals]))
        if bool((matched > 1).any()):
            raise two_rows_of_one_key(plan.schema.qualified_name)
        edit.matched += int(matched.sum())
        edit.deleted += int((deleted & (matched > 0)).sum())
        if plan.settlement is not None:
            old = pa.concat_tables(
                [edit.layout.arrow.empty_table(), *(self._old_rows(hit, edit.layout) for hit in hits)]
            )
            ordinals = np.concatenate([np.empty(0, dtype=np.int64), *(hit.ordinals for hit in hits)])
            return inserted(plan.settlement.settled(rows, logical(old, edit.layout), ordinals), edit.layout)
        if plan.kept:
            rows = with_kept_values(rows, [_old(self._folder, hit) for hit in hits], plan, edit.layout)
        if edit.layout.feeds:
            rows = rows.append_column(CHANGE, kinds_of_new(matched > 0))
        if edit.layout.tracking is not None:
            rows = rows.append_column(ROW_ID, self._kept_ids(hits, len(rows), edit.layout.tracking))
        return rows.filter(pa.array(~deleted)) if bool(deleted.any()) else rows

    def _kept_ids(self, hits: Iterable[Hit], rows: int, tracking: RowTracking) -> pa.Array:
        """Of each of so many rows the id of the one that it replaces."""
        ids = np.full(rows, -1, dtype=np.int64)
        for hit in hits:
            ids[hit.ordinals] = self._ids.of(hit.file, hit.positions, tracking)
        return optional(ids)

    def _old_rows(self, hit: Hit, layout: TableLayout) -> pa.Table:
        """All columns of rows that were found, as data files have them; of the row groups that have any."""
        order = np.argsort(hit.positions, kind="stable")
        positions, start = hit.positions[order], 0
        parts = [layout.arrow.empty_table()]
        for length, read in self._folder.row_groups(hit.file.path, int(hit.file.add["size"]), layout.arrow.names):
            low, high = np.searchsorted(positions, [start, start + length]).tolist()
            if low < high:
                parts.append(old_rows(read(), pa.array(positions[low:high] - start), layout.arrow))
            start += length
        return pa.concat_tables(parts).take(pa.array(np.argsort(order)))

    def search_ahead(self, plan: CommitPlan, portions: Iterable[pa.Table]) -> Found | None:
        """Where the keys of the first of `portions` are in the data files that are known now, for a
        window that comes next; None where nobody will ask. From any thread. Raises NotDirect,
        UnsupportedChange, StoreError.
        """
        layout, rows = self._live.layout, next(iter(portions), None)
        if layout is None or rows is None or not isinstance(plan.action, MergePlan):
            return None
        found = self._found(rows, plan.action, KeyColumns.of(plan.action.schema, layout, only=plan.action.only), None)
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
                alive = ~among(positions, gone)
                if bool(alive.any()):
                    hits.append(Hit(file, positions[alive], ordinals[alive]))
        return hits

    def _read_keys(self, file: LiveFile, key: KeyColumns) -> FileKeys:
        return FileKeys.read(self._folder.columns(file.path, int(file.add["size"]), key.stored), key)

    def _removed(self, file: LiveFile) -> Positions:
        if file.removed is None:
            file.removed = read_vector(file.add["deletionVector"], self._folder.read)
        return file.removed

    def _writer(self, layout: TableLayout) -> FileWriter:
        return FileWriter(self._folder, layout, self._key.physical if self._key is not None else ())

    def _mark(self, edit: Edit, taken: Taken) -> None:
        """Removes rows of the live files."""
        vectors = VectorFile()
        for path, parts in taken.items():
            file = self._live.by_path[path]
            new = np.concatenate([positions for positions, _ in parts])
            removed = removed_rows(self._removed(file), new, rows=file.rows)
            edit.removes.append(file.add)
            if len(removed) < file.rows:
                add = with_vector(file.add, vectors.add(removed))
                edit.marked.append(LiveFile.of(add, removed=removed, memory=file.memory))
        if vectors:
            edit.orphans.append(vectors.path)
            self._folder.put(vectors.path, vectors.content)

    def _state_old_rows(self, edit: Edit, taken: Taken) -> None:
        """States the rows that go, for readers of changes."""
        assert edit.layout is not None
        old = OldRows(self._folder, edit.layout, edit.orphans)
        for path, parts in taken.items():
            positions, gone = (np.concatenate(one) for one in zip(*parts, strict=True))
            old.take(path, int(self._live.by_path[path].add["size"]), positions, gone)
        edit.replaced += old.actions()
        faults.point("apply.direct.changes_written")

    def _name(self, path: str, key: KeyColumns) -> str:
        """What the cache calls the keys of a data file: a table may get another key over the same files."""
        return f"{self._folder.name}{path} {' '.join(key.stored)}"


@dataclass(frozen=True, slots=True)
class DirectWindow:
    """Edits of `table` for `plan` with the rows of `pieces`."""

    way: ClassVar[str] = DIRECT
    table: DirectTable
    plan: CommitPlan
    pieces: HeldRows

    def edit(self, base: DeltaTransaction) -> Edit:
        """See Maker."""
        return self.table.edit(base, self.plan, self.pieces.tables(), found=self.pieces.found)


@dataclass(frozen=True, slots=True)
class FilledColumns:
    """Edits that give `table` what `reshape` makes of its columns, see `DirectTable.filled_edit`."""

    way: ClassVar[str] = DIRECT
    table: DirectTable
    reshape: Callable[[list[Any]], Sequence[Field]]
    values: Mapping[str, pa.Scalar]

    def edit(self, base: DeltaTransaction) -> Edit:
        """See Maker."""
        return self.table.filled_edit(base, self.reshape(base.fields()), self.values)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Edits that make `table`, see `DirectTable.first_edit`."""

    way: ClassVar[str] = DIRECT
    table: DirectTable
    fields: Sequence[Field]
    rows: pa.Table
    said: Said

    def edit(self, base: DeltaTransaction) -> Edit:
        """See Maker."""
        return self.table.first_edit(base, self.fields, self.rows, said=self.said)


def _filled(rows: pa.Table, layout: TableLayout, values: Mapping[str, pa.Scalar]) -> pa.Table:
    """Rows of a data file in the columns of `layout`, which are there or in `values`. They keep their ids, and this
    commit made them what they are.
    """
    arrays = []
    for column in layout.columns:
        field = column.field
        if field.name in rows.column_names:
            arrays.append(rows[field.name])
        elif column.name in values:
            one = pa.array([values[column.name].as_py()], field.type)
            arrays.append(one.take(pa.array(np.zeros(len(rows), dtype=np.int64))))
        else:
            arrays.append(pa.nulls(len(rows), field.type))
    table = pa.Table.from_arrays(arrays, schema=layout.arrow)
    if layout.tracking is not None:
        table = table.append_column(layout.hidden[ROW_ID], rows[layout.tracking.ids])
    if layout.feeds:
        table = table.append_column(layout.hidden[CHANGE], kinds_of_new(np.ones(len(rows), dtype=bool)))
    return table


def _old(folder: TableFolder, hit: Hit) -> tuple[Any, Numbers, Numbers]:
    def read(names: list[str]) -> pa.Table:
        return folder.columns(hit.file.path, int(hit.file.add["size"]), names)

    return read, hit.positions, hit.ordinals
