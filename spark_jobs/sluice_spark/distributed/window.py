"""One window of one table on Spark's executors, up to what the driver commits.

The driver plans, reads accounts and makes one commit; no row passes it. Owns that the accounts add up
before anything is committed: every segment was read once, every piece that was cut arrived in the
part that it belongs to, every data file was marked by one task, and every row that waited for a value
of the lake was written. Data files do not depend on the lake table's version, so an attempt that met
another commit only looks for the keys again.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, ClassVar, Self

import pyarrow as pa

from sluice.contract import envelope
from sluice.errors import ServiceError, StoreError
from sluice_spark.distributed import append_stage, fold_stage, kept_values_stage, key_search_stage, partition_stage
from sluice_spark.distributed.append_stage import Appended
from sluice_spark.distributed.fold_stage import FoldTask, Part, Portion, Written
from sluice_spark.distributed.kept_values_stage import Finished, FinishTask
from sluice_spark.distributed.key_search_stage import JOIN_SETTINGS, KnownFile, Marked, MarkedFile, MarkTask
from sluice_spark.distributed.partition_stage import BinCount, CutTask
from sluice_spark.distributed.stages import COUNT, ERROR, RESULT, Piece, Stages, require, results, settings
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.partition import Links, cutter_for
from sluice_spark.fold.ranges import KeyRanges
from sluice_spark.lake.commit_way import DISTRIBUTED, NotDirect
from sluice_spark.lake.direct.actions import Prepared, metrics, removal, with_vector
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import TableLayout
from sluice_spark.lake.plan import MergePlan
from sluice_spark.read.changes import Count, require_few

_DECODED = 6
"""About how many bytes of changes one byte of a segment becomes. A part that is larger than that says
goes over its executor's disk."""
_MOST_PARTS = 4096
LEVEL = 1 << 16
"""The parts of a window cut rows otherwise than the parts of a part."""
_KEYS_A_TASK = 1_000_000


@dataclass(slots=True)
class Folded:
    """What a window became before the lake was looked at. `parts` are empty for one whose rows are
    all new.
    """

    count: Count
    written: Written
    portions: list[Portion] = field(default_factory=list)

    @property
    def replaces(self) -> bool:
        """Whether nothing of the lake's rows remains."""
        return any(portion.replaces for portion in self.portions)

    @property
    def plan(self) -> MergePlan | None:
        """What a merge must do, None when there is nothing to merge."""
        plans = [portion.plan for portion in self.portions if portion.plan is not None]
        return reduce(MergePlan.plus, plans) if plans else None


class DistributedWindow:
    """The window `task` for the lake table that is `table` in SQL, in the jobs of `stages`; its
    `layout` is stated with the first attempt. With `appends` all of its rows are new. The
    links between keys that moved take at most `memory` bytes of the driver.

    A context: scratch is deleted when the block ends, and new data files unless they were committed
    or may have been.
    """

    way: ClassVar[str] = DISTRIBUTED

    def __init__(
        self, stages: Stages, task: WindowTask, *, table: str, spool_path: str, appends: bool, memory: int
    ) -> None:
        self._stages = stages
        self._task = task
        self._table = table
        self._spool_path = spool_path
        self._appends = appends
        self._memory = memory
        self._folded: Folded | None = None
        self._in_doubt = False
        self.count = Count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._in_doubt:
            self._discard()
        self._stages.close()
        spool = self._task.spool.open()
        with suppress(StoreError):
            for key in list(spool.list(self._task.scratch)):
                spool.delete(key)

    def prepare(self, transaction: DeltaTransaction) -> Prepared | None:
        """What to commit on top of the version that `transaction` read. Raises NotDirect before
        anything is written, UnsupportedChange, ManifestCorrupt, ApplyError, StoreError.
        """
        layout = transaction.layout()
        self._require_columns(layout)
        if self._folded is None or layout != self._task.layout:
            self._discard()
            self._task = replace(self._task, layout=layout)
            self._folded = self._append() if self._appends else self._fold()
            self.count = self._folded.count
        prepared = self._prepared(self._folded, transaction)
        self._in_doubt = prepared is not None
        return prepared

    def landed(self, prepared: Prepared, version: int) -> None:
        """`prepared` was committed."""

    def abandon(self, prepared: Prepared) -> None:
        """`prepared` was refused. What does not depend on the version stays for the next attempt."""
        assert self._folded is not None
        self._in_doubt = False
        self._delete(set(prepared.written) - _paths(self._folded.written))

    def _require_columns(self, layout: TableLayout) -> None:
        if not self._appends and self._task.kind.only_by_statement:
            raise NotDirect(self._task.kind.only_by_statement)
        if {column.name for column in layout.columns} != set(self._task.lake_columns):
            raise NotDirect("the lake table has other columns than the window")
        if any(column.name.lower() == "_metadata" for column in layout.columns):
            raise NotDirect("a column has the name of Spark's metadata")

    # Before the lake is looked at.

    def _append(self) -> Folded:
        pieces = self._stages.collected(self._stages.first(append_stage.append, self._task, tasks=len(self._task.bins)))
        found: list[Appended] = [piece.value for piece in pieces if piece.kind == RESULT]
        self._raise(pieces, {path for one in found for path in _paths(one.written)})
        self._require_bins([one.number for one in found])
        return Folded(_total(one.count for one in found), _together(one.written for one in found))

    def _fold(self) -> Folded:
        task, stages = self._task, self._stages
        parts = parts_for(task, slots=stages.slots)
        cutter = replace(cutter_for([task.schema]), level=LEVEL, parts=parts)
        cutter = replace(cutter, groups=self._groups(CutTask(task, cutter)))
        cut = stages.first(partition_stage.cut, CutTask(task, cutter), tasks=len(task.bins))
        pieces = stages.collected(stages.then(cut, fold_stage.fold_part, FoldTask(task, cutter), tasks=parts))
        found: list[Part] = [piece.value for piece in pieces if piece.kind == RESULT]
        portions = [portion for part in found for portion in part.portions]
        self._raise(pieces, {path for portion in portions for path in _paths(portion.written)})
        counts: list[BinCount] = [piece.value for piece in pieces if piece.kind == COUNT]
        self._require_bins([one.number for one in counts])
        require(holds=len({part.number for part in found}) == len(found), what="a part was folded twice")
        require(
            holds=sum(one.pieces for one in counts) == sum(part.pieces for part in found),
            what="pieces of a window were lost",
        )
        return Folded(_total(one.count for one in counts), _together(portion.written for portion in portions), portions)

    def _groups(self, task: CutTask) -> Any:
        segments = [segment for share in self._task.bins for segment in share]
        links = Links()
        if any(segment.key_changes and sum(segment.unchanged.values()) for segment in segments):
            job = self._stages.first(partition_stage.links, task, tasks=len(self._task.bins))
            for old, new in results(self._stages.collected(job)):
                links.add(old, new)
                require_few(links, limit=self._memory)
        return links.groups()

    def _require_bins(self, numbers: Sequence[int]) -> None:
        require(holds=sorted(numbers) == list(range(len(self._task.bins))), what="segments were not read, or twice")

    # For one version of the lake table.

    def _prepared(self, folded: Folded, transaction: DeltaTransaction) -> Prepared | None:
        if self._appends:
            return self._adding(folded, "append") if folded.count.rows else None
        if folded.replaces:
            prepared = self._adding(folded, "overwrite")
            for add in transaction.files():
                prepared.actions.append({"remove": removal(add)})
                prepared.gone.append(add["path"])
            prepared.metrics = metrics(prepared, _counts(folded), vectors=0)
            return prepared
        plan = folded.plan
        return self._merging(folded, plan, transaction) if plan is not None else None

    def _adding(self, folded: Folded, operation: str) -> Prepared:
        prepared = Prepared(operation, reads=operation != "append")
        _add(prepared, folded.written)
        prepared.metrics = metrics(prepared, _counts(folded), vectors=0)
        return prepared

    def _merging(self, folded: Folded, plan: MergePlan, transaction: DeltaTransaction) -> Prepared:
        prepared = self._adding(folded, "merge")
        files = {file.path: file for file in map(LiveFile.of, transaction.files())}
        portions = [portion for portion in folded.portions if portion.keys]
        found = self._look(portions, plan, transaction.version, files) if portions and files else []
        try:
            self._replace(prepared, folded, files, found)
        except (ServiceError, NotDirect):
            self._delete(_written(found))
            raise
        return prepared

    def _replace(self, prepared: Prepared, folded: Folded, files: Mapping[str, LiveFile], found: Sequence[Any]) -> None:
        marked = [item for one in found if isinstance(one, Marked) for item in one.files]
        finished = [one for one in found if isinstance(one, Finished)]
        self._require_marked(folded, marked, finished)
        counts = _counts(folded)
        for one in marked:
            add = files[one.path].add
            prepared.actions.append({"remove": removal(add)})
            if one.vector is None:
                prepared.gone.append(one.path)
            else:
                again = with_vector(add, one.vector)
                prepared.actions.append({"add": again})
                prepared.files.append(LiveFile.of(again))
            counts["matched"] += one.matched
            counts["deleted"] += one.gone
        for portion in finished:
            _add(prepared, portion.written)
            counts["rows"] += portion.written.rows
            counts["bytes"] += portion.written.bytes
        prepared.written = sorted({*prepared.written, *_written(found)})
        prepared.metrics = metrics(prepared, counts, vectors=sum(one.vector is not None for one in marked))

    def _look(
        self, portions: Sequence[Portion], plan: MergePlan, version: int, files: Mapping[str, LiveFile]
    ) -> list[Any]:
        stages, task = self._stages, self._task
        keys = sum(portion.key_count for portion in portions)
        tasks = max(stages.slots, math.ceil(keys / _KEYS_A_TASK))
        if not plan.ranges.worth_their_cost(files=len(files)):
            plan = replace(plan, ranges=KeyRanges())
        # All keys in the scratch may match.
        plan = replace(plan, unmatched=False)
        paths = [f"{self._spool_path}/{portion.keys}" for portion in portions]
        numbers = {portion.number: place for place, portion in enumerate(portions)}
        with settings(stages.session, {**JOIN_SETTINGS, "spark.sql.shuffle.partitions": str(tasks)}):
            rows = key_search_stage.positions_of(
                stages.session, self._table, version, plan=plan, keys=paths, tasks=tasks
            )
            job = stages.of_rows(rows, key_search_stage.mark, MarkTask(task, _known(files), numbers, self._kept(plan)))
            finish = FinishTask(task, dict(enumerate(portions)))
            pieces = stages.collected(stages.then(job, kept_values_stage.finish, finish, tasks=len(portions)))
        found = [piece.value for piece in pieces if piece.kind == RESULT]
        self._raise(pieces, _written(found))
        return found

    def _kept(self, plan: MergePlan) -> pa.Schema:
        fields = [self._task.layout.field(column.name) for column in plan.kept]
        if any(column.lake.special for column in plan.kept):
            fields.append(self._task.layout.field(envelope.SPECIAL))
        return pa.schema(fields)

    def _require_marked(self, folded: Folded, marked: Sequence[MarkedFile], finished: Sequence[Finished]) -> None:
        paths = [item.path for item in marked]
        require(holds=len(set(paths)) == len(paths), what="a data file was marked twice")
        numbers = [portion.number for portion in finished]
        require(holds=len(set(numbers)) == len(numbers), what="a portion was finished twice")
        matched = sum(item.matched for item in marked)
        require(holds=matched == sum(one.matched for one in finished), what="rows that were found were lost")
        kept_values_stage.require_values(folded.portions, finished)

    # What was written and is not committed.

    def _raise(self, pieces: Sequence[Piece], written: set[str]) -> None:
        """Raises the error among `pieces`; the files of the tasks that succeeded are deleted then."""
        for piece in pieces:
            if piece.kind == ERROR:
                error: ServiceError = piece.value
                self._delete(written)
                raise error

    def _discard(self) -> None:
        if self._folded is not None:
            self._delete(_paths(self._folded.written))
            self._folded = None

    def _delete(self, paths: set[str]) -> None:
        for path in paths:
            with suppress(StoreError):
                self._task.folder.delete(path)


def parts_for(task: WindowTask, *, slots: int) -> int:
    """In how many parts the changes of `task` are folded."""
    size = _DECODED * sum(segment.bytes for share in task.bins for segment in share)
    return min(max(slots, math.ceil(2 * size / task.limit)), _MOST_PARTS)


def _known(files: Mapping[str, LiveFile]) -> dict[str, KnownFile]:
    """By the last part of the path, which Spark and the log spell alike. Raises NotDirect."""
    known: dict[str, KnownFile] = {}
    for path, file in files.items():
        name = path.rsplit("/", 1)[-1]
        if name in known:
            raise NotDirect("two data files have the same name")
        known[name] = KnownFile(path, int(file.add["size"]), file.rows, file.add.get("deletionVector"))
    return known


def _add(prepared: Prepared, written: Written) -> None:
    for add in written.adds:
        prepared.actions.append({"add": add})
        prepared.files.append(LiveFile.of(add))
        prepared.written.append(add["path"])


def _paths(written: Written) -> set[str]:
    return {add["path"] for add in written.adds}


def _written(found: Iterable[Any]) -> set[str]:
    """Paths of the files that came of looking for keys."""
    written: set[str] = set()
    for one in found:
        written |= {one.vector_path} - {""} if isinstance(one, Marked) else _paths(one.written)
    return written


def _together(parts: Any) -> Written:
    total = Written()
    for part in parts:
        total.plus(part)
    return total


def _total(counts: Any) -> Count:
    total = Count(ops=Counter())
    for count in counts:
        total.rows += count.rows
        total.commit_time_us = max(total.commit_time_us, count.commit_time_us)
        total.ops.update(count.ops)
    return total


def _counts(folded: Folded) -> dict[str, int]:
    source = sum(portion.source for portion in folded.portions)
    return {"source": source, "matched": 0, "deleted": 0, "rows": folded.written.rows, "bytes": folded.written.bytes}
