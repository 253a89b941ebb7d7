"""One window of one table, from segments to a commit.

Owns the order of steps that makes a replay harmless: read and check the bytes, follow the schema,
let the mode plan the commit, commit with the marker. Runs in a worker thread on a private session;
the caller runs one window of a table at a time. A window that fits in `max_memory_bytes` is folded
at once, a larger one in portions of at most that. Either way there is one commit.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import structlog

from sluice import faults
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError, StoreError, UnsupportedChange, WriterFenced
from sluice.manifest.state import TableState
from sluice.store.base import ObjectStore
from sluice_spark.lake import evolution
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.handover import Handover, Pieces
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.table import LakeTable, Place, Way
from sluice_spark.modes import changelog, choice, mirror, whole_rows
from sluice_spark.modes.target import Target
from sluice_spark.options import CHANGELOG, ApplyOptions
from sluice_spark.read.changes import Count, WindowChanges, checked_bytes, unite, versions_in
from sluice_spark.read.window import Window, visible

_log = structlog.get_logger("sluice.apply")


@dataclass(frozen=True, slots=True)
class Applied:
    """What a window did. `place` is where the lake table stands since then, `through_seq` the last
    entry of which nothing is left to do.

    `rows` counts changes, `commit_time_us` is the newest commit time among them (0: none). `ops`
    are the rows by what they did, `seconds` the time by phase, both in the words of the metrics.

    `way` says how changes were committed, `fresh_looks` how often the commit met another one. `files`
    counts the lake table's files, None when that is not known.
    """

    place: Place
    through_seq: int
    rows: int = 0
    schema_version: int = 0
    commit_time_us: int = 0
    committed: bool = True
    ops: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    way: Way = field(default_factory=Way)
    fresh_looks: int = 0
    files: int | None = None


class TableApply:
    """Applies windows of one table in the state `state`, whose Delta table is `lake`."""

    def __init__(
        self,
        options: ApplyOptions,
        store: ObjectStore,
        lake: LakeTable,
        handover: Handover,
        *,
        state: TableState,
        removals_sent: bool,
        begun_seq: int = 0,
        lake_version: int = 0,
    ) -> None:
        """`store` holds the spool, and `handover` gives rows to the session of `lake`.

        `begun_seq` is the last entry that this process has begun a window for: an attempt that
        failed may have landed there. `lake_version` is the schema version that this process has
        brought the lake to (0: none yet), `removals_sent` what `removals_are_sent` says.
        """
        self._options = options
        self._store = store
        self._lake = lake
        self._handover = handover
        self._state = state
        self._removals_sent = removals_sent
        self._begun_seq = begun_seq
        self._lake_version = lake_version
        self._seconds = lake.seconds

    def apply(self, window: Window) -> Applied:
        """Commits `window`, or says how much of it is in the lake already. A window without
        segments and without a new schema version only looks at the lake table.

        Raises UnsupportedChange when the table cannot follow, ApplyError or a StoreError when a
        later attempt may succeed.
        """
        with translated_errors():
            faults.point("apply.window.before")
            with self._seconds.phase("look"):
                done = self._landed(window)
            if done is None:
                done = self._snapshot(window) if window.is_snapshot else self._changes(window)
            faults.point("apply.window.after")
            return self._tidied(done) if done.committed else done

    def _tidied(self, done: Applied) -> Applied:
        """A window that is in the lake stays there, whatever becomes of its small files."""
        try:
            with self._seconds.phase("join"):
                self._lake.join_small_files()
        except (ApplyError, StoreError) as error:
            _log.warning("small data files were not joined", error=str(error), hint=error.hint)
        return replace(done, place=self._lake.place, files=self._lake.known_file_count)

    def _landed(self, window: Window) -> Applied | None:
        """What the lake has of `window`: an earlier attempt may have committed before it failed.
        None when there is work to do.

        Raises WriterFenced when the lake is ahead of everything that this process has begun.
        """
        before = self._lake.place
        place = self._lake.find(None) if window.is_snapshot and before.marker is None else self._lake.look()
        marker = place.marker
        if marker is None or marker == before.marker:
            return (
                None
                if window.segments or window.is_snapshot or window.schema_version
                else Applied(place, window.last_seq, committed=False, seconds=self._seconds)
            )
        if marker > max(window.last_seq, self._begun_seq) and before.seen:
            raise WriterFenced(
                f"the lake table records {self._lake.app_id} at {marker}, past {window.last_seq} which was "
                "about to be applied",
                hint="another applier works on this lake; run one per pipeline",
            )
        return Applied(place, marker, committed=False, seconds=self._seconds)

    def _snapshot(self, window: Window) -> Applied:
        snapshot = self._state.snapshot
        assert snapshot is not None
        if any(segment.schema_version != snapshot.schema_version for segment in window.segments):
            raise UnsupportedChange("the snapshot has rows of several schema versions")
        schema = self._state.schemas[snapshot.schema_version]
        columns = choice.snapshot_columns(self._options, schema)
        with self._seconds.phase("read"):
            for segment in window.segments:
                checked_bytes(self._store, segment)
        faults.point("apply.read.after")
        keys = [segment.key for segment in window.segments if segment.rows]
        frame = self._handover.snapshot(keys, columns=columns, lsn=snapshot.snapshot_lsn)
        with self._seconds.phase("merge"):
            self._lake.replace(window.last_seq, frame=frame)
        rows = sum(segment.rows for segment in window.segments)
        return Applied(
            self._lake.place,
            window.last_seq,
            rows,
            snapshot.schema_version,
            ops={"snapshot": rows},
            seconds=self._seconds,
        )

    def _changes(self, window: Window) -> Applied:
        snapshot = self._state.snapshot
        assert snapshot is not None
        segments = visible(window.segments, snapshot_lsn=snapshot.snapshot_lsn)
        changes = WindowChanges(self._store, segments, self._state.schemas, snapshot.snapshot_lsn)
        with self._seconds.phase("read"):
            at_once = changes.within(self._options.max_memory_bytes)
            versions = changes.versions() if at_once is None else versions_in(at_once)
        faults.point("apply.read.after")
        newest = max([window.schema_version, snapshot.schema_version, *(version.version for version in versions)])
        if not versions and newest == snapshot.schema_version:
            return Applied(self._lake.place, window.last_seq, committed=False, seconds=self._seconds)
        schema = self._state.schemas[newest]
        if newest != self._lake_version:
            with self._seconds.phase("schema"):
                self._evolve(schema, since=snapshot.schema_version)
        if not versions:
            return Applied(
                self._lake.place, window.last_seq, schema_version=newest, committed=False, seconds=self._seconds
            )
        versions = sorted({*versions, schema}, key=lambda one: one.version)
        count = Count()
        with self._seconds.phase("merge"), self._handover.pieces() as pieces:
            if at_once is not None:
                rows = self._united(schema, window)(count.over(at_once))
                plan = self._plan_at_once(rows, schema, pieces)
            else:
                plan = self._plan_in_portions(changes, count, versions, window, pieces)
            if plan is not None:
                self._lake.commit(window.last_seq, plan=plan, pieces=pieces)
        committed = self._lake.place.marker == window.last_seq
        return Applied(
            self._lake.place,
            window.last_seq,
            count.rows,
            schema.version,
            count.commit_time_us,
            committed=committed,
            ops=count.by_kind(),
            seconds=self._seconds,
            way=self._lake.way,
            fresh_looks=self._lake.fresh_looks,
        )

    def _evolve(self, schema: TableSchema, *, since: int) -> None:
        evolution.evolve(
            self._lake,
            self._state.schemas,
            schema,
            since=since,
            metadata=choice.metadata_names(self._options, schema),
            is_changelog=self._mode(schema) == CHANGELOG,
        )

    def _mode(self, schema: TableSchema) -> str:
        return choice.mode_of(self._options, schema)

    def _plan_at_once(self, rows: pa.Table, schema: TableSchema, pieces: Pieces) -> CommitPlan | None:
        if self._mode(schema) == CHANGELOG:
            return changelog.plan([rows], pieces, columns=choice.lake_columns(self._options, schema))
        return self._net_effect(schema)(self._target(schema), [rows], pieces)

    def _plan_in_portions(
        self, changes: WindowChanges, count: Count, versions: Sequence[TableSchema], window: Window, pieces: Pieces
    ) -> CommitPlan | None:
        schema, limit = versions[-1], self._options.max_memory_bytes
        columns = choice.lake_columns(self._options, schema)
        united = self._united(schema, window)
        if self._mode(schema) == CHANGELOG:
            return changelog.plan(
                (united([item]) for item in changes.tables(count, limit=limit)), pieces, columns=columns
            )
        if changes.only_inserts and self._appends(schema):
            new = (mirror.all_new(united([item]), schema) for item in changes.tables(count, limit=limit))
            return changelog.plan(new, pieces, columns=columns)
        with closing(changes.portions(count, versions, limit=limit)) as cut:
            return self._net_effect(schema)(self._target(schema), map(united, cut), pieces, keyed=True)

    def _united(self, schema: TableSchema, window: Window) -> Callable[..., pa.Table]:
        if self._mode(schema) != CHANGELOG:
            return partial(unite, schema=schema, defaults=True)
        # A changelog keeps changes as they were sent: what a column means for older rows is no
        # change.
        return lambda parts: changelog.with_origins(unite(parts, schema, defaults=False), window.origins)

    def _net_effect(self, schema: TableSchema) -> Callable[..., CommitPlan | None]:
        return whole_rows.plan if self._mode(schema) == choice.ROWS_MODE else mirror.plan

    def _appends(self, schema: TableSchema) -> bool:
        """Whether an inserted row is one more, whatever the lake holds."""
        return self._removals_sent or self._mode(schema) == choice.ROWS_MODE

    def _target(self, schema: TableSchema) -> Target:
        return Target(
            self._lake,
            self._handover,
            schema,
            removals_sent=self._removals_sent,
            metadata=self._options.metadata_columns,
        )
