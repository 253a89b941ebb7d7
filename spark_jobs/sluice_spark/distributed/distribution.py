"""From a window to its jobs: what the options, the table and Spark say about them."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError, StoreError
from sluice.manifest.values import TableState
from sluice_spark.distributed import partition_stage, snapshot_chunks, snapshot_rows, touched_keys
from sluice_spark.distributed.arrival import Arrival
from sluice_spark.distributed.stages import Stages, results
from sluice_spark.distributed.task import WindowTask, in_bins
from sluice_spark.distributed.touched_keys import TouchedSpan
from sluice_spark.distributed.window import DistributedWindow
from sluice_spark.kinds.registry import kind_of
from sluice_spark.lake.resync import state_columns
from sluice_spark.lake.rows_to_commit import SCRATCH
from sluice_spark.lake.table import LakeTable
from sluice_spark.options import ApplyOptions
from sluice_spark.read.changes import NEWEST, WindowChanges
from sluice_spark.spool import StorePrefix


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distributed windows of the table in the state `state`, into the Delta table `lake` in `folder` (with its
    slash) of the lake. `removals_sent` is what `removals_are_sent` says.
    """

    options: ApplyOptions
    lake: LakeTable
    folder: str
    state: TableState
    removals_sent: bool

    @staticmethod
    def of(options: ApplyOptions, lake: LakeTable, state: TableState, *, removals_sent: bool) -> "Distribution":
        """Those into the lake table of `state`."""
        return Distribution(options, lake, f"{state.path}/", state, removals_sent)

    def window(
        self,
        segments: Sequence[Segment],
        schema: TableSchema,
        *,
        after_lsn: int,
        until_lsn: int = NEWEST,
        origins: Mapping[int, tuple[str, int]] | None = None,
    ) -> DistributedWindow:
        """The changes of `segments` that ended after `after_lsn` and not after `until_lsn`, as rows of `schema`."""
        task = self._task(segments, schema, after_lsn=after_lsn, until_lsn=until_lsn, origins=origins)
        return DistributedWindow(
            Stages(self.lake.session),
            task,
            table=self.lake.expression,
            spool_path=self.options.scratch_path,
            appends=task.kind.only_adds(segments, schema, removals_sent=self.removals_sent),
            memory=self.options.max_memory_bytes,
        )

    def snapshot(
        self,
        segments: Sequence[Segment],
        schema: TableSchema,
        columns: Sequence[tuple[str, str]],
        *,
        lsn: int,
        marker: int,
        further: bool = False,
        touched: tuple[str, ...] = (),
    ) -> None:
        """Commits the rows of a snapshot taken at `lsn`, which have `schema`, as the whole table or as `further` rows
        of it, with `marker`. Those are left out whose keys are in the objects `touched`. Raises ManifestCorrupt
        when a segment is not the one that the manifest describes.
        """
        stages = Stages(self.lake.session)
        bins = in_bins(segments, slots=stages.slots, most=snapshot_rows.BIN_BYTES)
        kind = kind_of(self.state, schema.carried)
        task = snapshot_rows.SnapshotTask(self._spool, bins, schema, kind, touched)
        try:
            frame = snapshot_rows.snapshot_frame(stages, task, columns, lsn=lsn)
            if further:
                self.lake.write(self.lake.app_id, marker, frame=frame, mode="append")
            else:
                self._replace(marker, frame, schema.carried, columns, lsn=lsn, segments=segments)
        except ApplyError:
            # Spark says that a task failed, not why.
            results(stages.collected(stages.first(snapshot_rows.check, task, tasks=len(bins))))
            raise
        finally:
            stages.close()

    def snapshot_in_chunks(self, chunks: Sequence[Segment], columns: Sequence[tuple[str, str]], *, marker: int) -> None:
        """Commits the rows of a snapshot that was read in `chunks` at several moments, with the changes
        from between them, as the whole table, with `marker`. Raises ManifestCorrupt when a segment is not
        the one that the manifest describes, UnsupportedChange when they do not give the table.
        """
        snapshot = self.state.snapshot
        assert snapshot is not None
        stages = Stages(self.lake.session)
        between = self.changes(after_lsn=snapshot.first_lsn, until_lsn=snapshot.snapshot_lsn)
        schema = self.state.schemas[snapshot.schema_version].carried
        window = self._task([*chunks, *between], schema, after_lsn=snapshot.first_lsn, until_lsn=snapshot.snapshot_lsn)
        task = snapshot_chunks.task_of(window, chunks, snapshot_chunks.arrow_schema(columns), slots=stages.slots)
        try:
            frame = snapshot_chunks.joined(stages, task, columns)
            self._replace(marker, frame, schema, columns, lsn=snapshot.snapshot_lsn, segments=chunks)
        except ApplyError:
            # Spark says that a task failed, not why.
            cut = stages.first(snapshot_chunks.cut_joined, task, tasks=len(window.bins))
            results(stages.collected(stages.then(cut, snapshot_chunks.check_joined, task, tasks=task.cutter.parts)))
            raise
        finally:
            stages.close()

    def _replace(
        self,
        marker: int,
        frame: DataFrame,
        schema: TableSchema,
        columns: Sequence[tuple[str, str]],
        *,
        lsn: int,
        segments: Sequence[Segment],
    ) -> None:
        """Commits `frame`, all rows of a snapshot, as the table, with what the table keeps."""
        kind = kind_of(self.state, schema)
        snapshot = Arrival(self._spool.open(), kind, schema, self.state.schemas, columns, lsn, segments)
        self.lake.replace(marker, frame=snapshot.beside_kept(self.lake, frame))
        if kind.keeps_rows:
            state_columns(self.lake, [version.carried for version in self.state.schemas.values()], schema)

    def changes(self, *, after_lsn: int, until_lsn: int) -> list[Segment]:
        """See `changes_between`."""
        return snapshot_chunks.changes_between(self._spool.open(), self.state, after_lsn=after_lsn, until_lsn=until_lsn)

    def touched(self, segments: Sequence[Segment], before: TouchedSpan, *, until_lsn: int) -> TouchedSpan:
        """`before` and the keys of the changes of `segments` that ended after it and not after `until_lsn`."""
        snapshot = self.state.snapshot
        assert snapshot is not None
        # Not of the newest version: the key of the chunks is meant.
        schema = self.state.schemas[snapshot.schema_version].carried
        task = self._task(segments, schema, after_lsn=before.through_lsn, until_lsn=until_lsn)
        stages = Stages(self.lake.session)
        try:
            found = results(stages.collected(stages.first(touched_keys.touched, task, tasks=len(task.bins))))
        finally:
            stages.close()
        return before.plus(found, through_lsn=until_lsn)

    def remove(self, objects: Iterable[str]) -> None:
        """Removes objects of the spool's scratch. What cannot be removed goes at the next start."""
        spool = self._spool.open()
        with suppress(StoreError):
            for key in objects:
                spool.delete(key)

    @property
    def task_memory(self) -> int:
        """Bytes of decoded rows that a task holds."""
        return self._task([], self.state.schemas[self.state.schema_version], after_lsn=0).limit

    def versions(self, segments: Iterable[Segment], changes: WindowChanges) -> list[TableSchema]:
        """The schema versions of `segments`, some of those of `changes`, of which there is one, ascending."""
        newest = self.state.schemas[self.state.schema_version]
        task = self._task(list(segments), newest, after_lsn=changes.after_lsn, until_lsn=changes.until_lsn)
        stages = Stages(self.lake.session)
        try:
            found = results(stages.collected(stages.first(partition_stage.versions, task, tasks=len(task.bins))))
        finally:
            stages.close()
        return [self.state.schemas[number] for number in sorted(set().union(*found))]

    @property
    def _spool(self) -> StorePrefix:
        return self.options.spool

    def _task(
        self,
        segments: Sequence[Segment],
        schema: TableSchema,
        *,
        after_lsn: int,
        until_lsn: int = NEWEST,
        origins: Mapping[int, tuple[str, int]] | None = None,
    ) -> WindowTask:
        options, session = self.options, self.lake.session
        at_once = tasks_at_once(
            str(session.sparkContext.master),
            cores=session.conf.get("spark.executor.cores", "") or "",
            parallelism=int(session.sparkContext.defaultParallelism),
        )
        return WindowTask(
            spool=self._spool,
            lake=options.lake,
            table_folder=self.folder,
            scratch=f"{SCRATCH}{uuid.uuid4().hex}/",
            bins=in_bins(segments, slots=Stages(session).slots),
            after_lsn=after_lsn,
            until_lsn=until_lsn,
            schemas=self.state.schemas,
            schema=schema,
            limit=max(1, options.max_memory_bytes // at_once),
            kind=kind_of(self.state, schema),
            removals_sent=self.removals_sent,
            metadata=options.metadata_columns,
            origins=origins or {},
        )


def tasks_at_once(master: str, *, cores: str, parallelism: int) -> int:
    """How many tasks share one executor's memory, as far as Spark's settings say it: `cores` is what an
    executor may use (empty: not set), `parallelism` the number of tasks that run at a time.
    """
    # A standalone cluster gives an executor all cores of its machine, unless the settings say how many.
    if master.startswith("local[") or (not cores and master.startswith("spark:")):
        return parallelism
    return int(cores or 1)
