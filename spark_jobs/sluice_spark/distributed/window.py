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
from sluice_spark.distributed.fold_stage import FoldTask, Part, Portion
from sluice_spark.distributed.kept_values_stage import Finished, FinishTask
from sluice_spark.distributed.key_search_stage import JOIN_SETTINGS, KnownFile, Marked, MarkedFile, MarkTask
from sluice_spark.distributed.partition_stage import BinCount, CutTask
from sluice_spark.distributed.stages import COUNT, ERROR, RESULT, Piece, Stages, require, results, settings
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.partition import Links, cutter_for
from sluice_spark.lake.commit_way import DISTRIBUTED, NotDirect
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.edit import Edit, with_vector
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
        self._made: Edit | None = None
        self.count = Count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made is None or self._made.refused:
            self._discard()
        self._stages.close()
        spool = self._task.spool.open()
        with suppress(StoreError):
            for key in list(spool.list(self._task.scratch)):
                spool.delete(key)

    def edit(self, base: DeltaTransaction) -> Edit | None:
        """See Maker. Raises NotDirect before anything is written, UnsupportedChange, ManifestCorrupt, ApplyError,
        StoreError. What does not depend on the version stays for the next attempt.
        """
        self._made = None
        layout = base.layout()
        self._require_columns(layout)
        if self._folded is None or layout != self._task.layout:
            self._discard()
            self._task = replace(self._task, layout=layout)
            self._folded = self._append() if self._appends else self._fold()
            self.count = self._folded.count
        self._made = self._edit(self._folded, base)
        return self._made

    def _require_columns(self, layout: TableLayout) -> None:
        if not self._appends and self._task.kind.keeps_rows and self._truncates:
            raise NotDirect("a TRUNCATE changes every row of the table")
        if not self._appends and self._task.kind.only_by_statement:
            raise NotDirect(self._task.kind.only_by_statement)
        if {column.name for column in layout.columns} != set(self._task.columns):
            raise NotDirect("the lake table has other columns than the window")
        if any(column.name.lower() == "_metadata" for column in layout.columns):
            raise NotDirect("a column has the name of Spark's metadata")

    @property
    def _truncates(self) -> bool:
        return any(segment.ops.get(envelope.OP_TRUNCATE) for share in self._task.bins for segment in share)

    # Before the lake is looked at.

    def _append(self) -> Folded:
        pieces = self._stages.collected(self._stages.first(append_stage.append, self._task, tasks=len(self._task.bins)))
        found: list[Appended] = [piece.value for piece in pieces if piece.kind == RESULT]
        self._raise(pieces, {path for one in found for path in one.written.paths})
        self._require_bins([one.number for one in found])
        return Folded(_total(one.count for one in found), Written.together(one.written for one in found))

    def _fold(self) -> Folded:
        task, stages = self._task, self._stages
        parts = parts_for(task, slots=stages.slots)
        cutter = cutter_for([task.schema])
        cutter = replace(cutter, level=LEVEL, parts=parts, each_transaction=task.kind.keeps_rows)
        cutter = replace(cutter, groups=self._groups(CutTask(task, cutter)))
        cut = stages.first(partition_stage.cut, CutTask(task, cutter), tasks=len(task.bins))
        pieces = stages.collected(stages.then(cut, fold_stage.fold_part, FoldTask(task, cutter), tasks=parts))
        found: list[Part] = [piece.value for piece in pieces if piece.kind == RESULT]
        portions = [portion for part in found for portion in part.portions]
        self._raise(pieces, {path for portion in portions for path in portion.written.paths})
        counts: list[BinCount] = [piece.value for piece in pieces if piece.kind == COUNT]
        self._require_bins([one.number for one in counts])
        require(holds=len({part.number for part in found}) == len(found), what="a part was folded twice")
        require(
            holds=sum(one.pieces for one in counts) == sum(part.pieces for part in found),
            what="pieces of a window were lost",
        )
        return Folded(
            _total(one.count for one in counts), Written.together(portion.written for portion in portions), portions
        )

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

    def _edit(self, folded: Folded, base: DeltaTransaction) -> Edit | None:
        if self._appends:
            return self._adding(folded, "append", base) if folded.count.rows else None
        if folded.replaces:
            edit = self._adding(folded, "overwrite", base)
            edit.removes += base.files()
            return edit
        plan = folded.plan
        return self._merging(folded, plan, base) if plan is not None else None

    def _adding(self, folded: Folded, operation: str, base: DeltaTransaction) -> Edit:
        edit = Edit(base, operation, reads=operation != "append", layout=self._task.layout)
        edit.source = sum(portion.source for portion in folded.portions)
        edit.written.plus(folded.written)
        return edit

    def _merging(self, folded: Folded, plan: MergePlan, base: DeltaTransaction) -> Edit:
        edit = self._adding(folded, "merge", base)
        files = {file.path: file for file in map(LiveFile.of, base.files())}
        portions = [portion for portion in folded.portions if portion.keys]
        wanted = files or any(portion.waiting for portion in portions)
        found = self._look(portions, plan, base.version, files) if portions and wanted else []
        try:
            found += self._rest(folded.portions, found)
            self._replace(edit, folded, files, found)
        except (ServiceError, NotDirect):
            self._task.folder.discard(_written(found))
            raise
        return edit

    def _replace(self, edit: Edit, folded: Folded, files: Mapping[str, LiveFile], found: Sequence[Any]) -> None:
        marked = [item for one in found if isinstance(one, Marked) for item in one.files]
        finished = [one for one in found if isinstance(one, Finished)]
        self._require_marked(folded, marked, finished)
        for one in marked:
            add = files[one.path].add
            edit.removes.append(add)
            if one.vector is not None:
                edit.marked.append(LiveFile.of(with_vector(add, one.vector)))
            edit.matched += one.matched
            edit.deleted += one.gone
        for portion in finished:
            edit.written.plus(portion.written)
        if edit.matched > edit.deleted:
            edit.replaced += [action for one in found if isinstance(one, Marked) for action in one.replaced]
        edit.orphans += sorted(_written(found))

    def _look(
        self, portions: Sequence[Portion], plan: MergePlan, version: int, files: Mapping[str, LiveFile]
    ) -> list[Any]:
        stages, task = self._stages, self._task
        keys = sum(portion.key_count for portion in portions)
        tasks = max(stages.slots, math.ceil(keys / _KEYS_A_TASK))
        # All keys in the scratch may match.
        plan = replace(plan.cheapest(lambda: len(files)), unmatched=False)
        paths = [f"{self._spool_path}/{portion.keys}" for portion in portions]
        numbers = {portion.number: place for place, portion in enumerate(portions)}
        with settings(stages.session, {**JOIN_SETTINGS, "spark.sql.shuffle.partitions": str(tasks)}):
            rows = key_search_stage.positions_of(
                stages.session, self._table, version, plan=plan, keys=paths, tasks=tasks
            )
            known = _known(files, tracked=task.layout.tracking is not None)
            job = stages.of_rows(rows, key_search_stage.mark, MarkTask(task, known, numbers, self._kept(plan)))
            job = job.union(stages.first(kept_values_stage.announce, len(portions), tasks=1))
            finish = FinishTask(task, dict(enumerate(portions)))
            pieces = stages.collected(stages.then(job, kept_values_stage.finish, finish, tasks=len(portions)))
        found = [piece.value for piece in pieces if piece.kind == RESULT]
        self._raise(pieces, _written(found))
        return found

    def _rest(self, portions: Sequence[Portion], found: Sequence[Any]) -> list[Any]:
        """Accounts of portions that are settled although no row of theirs was looked for."""
        seen = {one.number for one in found if isinstance(one, Finished)}
        rest = [one for one in portions if kept_values_stage.is_settled(one) and one.number not in seen]
        if not rest:
            return []
        task = FinishTask(self._task, dict(enumerate(rest)))
        pieces = self._stages.collected(self._stages.first(kept_values_stage.settle_rest, task, tasks=len(rest)))
        made = [piece.value for piece in pieces if piece.kind == RESULT]
        self._raise(pieces, _written(made))
        return made

    def _kept(self, plan: MergePlan) -> pa.Schema:
        if plan.settlement is not None:
            return self._task.layout.arrow
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
                self._task.folder.discard(written)
                raise error

    def _discard(self) -> None:
        if self._folded is not None:
            self._task.folder.discard(self._folded.written.paths)
            self._folded = None


def parts_for(task: WindowTask, *, slots: int) -> int:
    """In how many parts the changes of `task` are folded."""
    size = _DECODED * sum(segment.bytes for share in task.bins for segment in share)
    return min(max(slots, math.ceil(2 * size / task.limit)), _MOST_PARTS)


def _known(files: Mapping[str, LiveFile], *, tracked: bool) -> dict[str, KnownFile]:
    """By the last part of the path, which Spark and the log spell alike. Raises NotDirect."""
    known: dict[str, KnownFile] = {}
    for path, file in files.items():
        name = path.rsplit("/", 1)[-1]
        if name in known:
            raise NotDirect("two data files have the same name")
        first_id = file.first_id if tracked else 0
        known[name] = KnownFile(path, int(file.add["size"]), file.rows, file.add.get("deletionVector"), first_id)
    return known


def _written(found: Iterable[Any]) -> set[str]:
    """Paths of the files that came of looking for keys."""
    written: set[str] = set()
    for one in found:
        written |= one.paths if isinstance(one, Marked) else set(one.written.paths)
    return written


def _total(counts: Any) -> Count:
    total = Count(ops=Counter())
    for count in counts:
        total.rows += count.rows
        total.commit_time_us = max(total.commit_time_us, count.commit_time_us)
        total.ops.update(count.ops)
    return total
