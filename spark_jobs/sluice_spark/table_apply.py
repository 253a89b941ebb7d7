"""One window of one table, from segments to a commit.

Owns the order of steps that makes a replay harmless: read and check the bytes, follow the schema,
let the kind of the table plan the commit, commit with the marker. Runs in a worker thread on a private session;
the caller runs one window of a table at a time. A window that fits in `max_memory_bytes` is folded
at once, a larger one in portions of at most that. Either way there is one commit.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import structlog

from sluice import faults
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError, StoreError, WriterFenced
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice_spark.applied_window import Applied
from sluice_spark.distributed.distribution import Distribution
from sluice_spark.kinds.planning import Planner
from sluice_spark.kinds.registry import kind_of, lake_columns
from sluice_spark.lake import evolution
from sluice_spark.lake.failures import SparkGone, translated_errors
from sluice_spark.lake.rows_to_commit import SparkHandover
from sluice_spark.lake.table import LakeTable
from sluice_spark.next_window import Ahead, Planned
from sluice_spark.options import ApplyOptions
from sluice_spark.read.changes import NEWEST, Count, Taken, WindowChanges, versions_in
from sluice_spark.read.window import Window, visible
from sluice_spark.snapshot_apply import SnapshotApply

_log = structlog.get_logger("sluice.apply")


class TableApply:
    """Applies windows of one table in the state `state`, whose Delta table is `lake`."""

    def __init__(
        self,
        options: ApplyOptions,
        store: ObjectStore,
        lake: LakeTable,
        handover: SparkHandover,
        snapshots: SnapshotApply,
        *,
        state: TableState,
        removals_sent: bool,
        begun_seq: int = 0,
        lake_version: int = 0,
        prepared: Ahead | None = None,
        following: Ahead | None = None,
        beside: Executor | None = None,
    ) -> None:
        """`store` holds the spool, `snapshots` applies those of this table, and `handover` gives rows to the session of
        `lake`.

        `begun_seq` is the last entry that this process has begun a window for: an attempt that
        failed may have landed there. `lake_version` is the schema version that this process has
        brought the lake to (0: none yet), `removals_sent` what `removals_are_sent` says.

        `prepared` may hold what of the window was done ahead, and `following` the window that comes
        next, which is then prepared while this one is committed. Small data files are joined in `beside` (None: at
        once).
        """
        self._beside = beside
        self._options = options
        self._store = store
        self._lake = lake
        self._handover = handover
        self._state = state
        self._removals_sent = removals_sent
        self._snapshots = snapshots
        self._begun_seq = begun_seq
        self._lake_version = lake_version
        self._prepared, self._following = prepared, following
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
                done = None if window.is_part else self._already_in_lake(window)
            if done is None:
                do = self._part if window.is_part else self._snapshot if window.is_snapshot else self._changes
                done = do(window)
            faults.point("apply.window.after")
            # A look as well: what was joined behind the last window is not kept for the next one.
            looks = not (window.segments or window.is_snapshot or window.schema_version)
            return self._tidied(done) if done.committed or looks else done

    def _tidied(self, done: Applied) -> Applied:
        """A window that is in the lake stays there, whatever becomes of its small files."""
        try:
            with self._seconds.phase("join"):
                self._lake.join_small_files(self._beside)
        except SparkGone:
            raise
        except (ApplyError, StoreError) as error:
            _log.warning("small data files were not joined", error=str(error), hint=error.hint)
        return replace(done, place=self._lake.place, files=self._lake.known_file_count)

    def _already_in_lake(self, window: Window) -> Applied | None:
        """What the lake has of `window`: an earlier attempt may have committed before it failed.
        None when there is work to do.

        Raises WriterFenced when the lake is ahead of everything that this process has begun.
        """
        before = self._lake.place
        place = self._lake.find(None) if window.is_snapshot and before.marker is None else self._lake.examine()
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

    def _part(self, window: Window) -> Applied:
        with self._seconds.phase("merge"):
            rows, refused = self._snapshots.apply_part(window)
        return Applied(
            self._lake.place,
            window.last_seq,
            rows,
            committed=False,
            ops={"snapshot": rows},
            seconds=self._seconds,
            not_in_parts=refused,
        )

    def _snapshot(self, window: Window) -> Applied:
        assert self._state.snapshot is not None
        with self._seconds.phase("merge"):
            rows = self._snapshots.apply_whole(window)
        version = self._state.snapshot.schema_version
        return Applied(self._lake.place, window.last_seq, rows, version, ops={"snapshot": rows}, seconds=self._seconds)

    def _changes(self, window: Window) -> Applied:
        snapshot = self._state.snapshot
        assert snapshot is not None
        self._options = self._as_made()
        changes = self._changes_of(window)
        with self._seconds.phase("read"):
            ready = self._prepared.take(window) if self._prepared is not None else None
            at_once = ready.changes if ready is not None else self._read_at_once(changes)
            versions = self._versions(changes, window) if at_once is None else versions_in(at_once)
        faults.point("apply.read.after")
        newest = max(
            [window.schema_version, snapshot.schema_version, self._lake_version, *(one.version for one in versions)]
        )
        if not versions and newest == snapshot.schema_version:
            return Applied(self._lake.place, window.last_seq, committed=False, seconds=self._seconds)
        # Those of versions before that of the snapshot are in it.
        numbers = {one.version for one in versions} | {window.schema_version}
        numbers = {number for number in numbers if number >= snapshot.schema_version}
        identity = evolution.identity(self._state.schemas, numbers) if numbers else newest
        if newest != self._lake_version:
            with self._seconds.phase("schema"):
                # An earlier attempt may have had more of the changes before it.
                newest = self._evolve(newest, since=snapshot.schema_version)
        if identity < evolution.identity(self._state.schemas, {newest}):
            # The lake comes to other ones only behind these changes: they cancelled out, and left no marker.
            versions = []
        if not versions:
            return Applied(
                self._lake.place, window.last_seq, schema_version=newest, committed=False, seconds=self._seconds
            )
        schema = self._state.schemas[newest].carried
        changes = changes.onto(schema)
        at_once = None if at_once is None else changes.projected(at_once)
        versions = changes.seen([*versions, schema])
        with self._seconds.phase("merge"):
            count = self._distributed(changes, schema, window) if at_once is None else None
            if count is None:
                if self._options.distributes(self._name):
                    at_once = changes.read_within(self._options.max_memory_bytes)
                planned = ready.planned if ready is not None else None
                # A segment may have no change that is to be applied, which only its rows say.
                count = Count() if at_once == [] else self._here(changes, at_once, versions, window, planned)
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

    def _as_made(self) -> ApplyOptions:
        """The options for a lake table that is there: it has columns of metadata, or has none, as it was made. Another
        setting is for its next snapshot.
        """
        schema, names = self._state.schemas[self._state.schema_version], self._lake.column_names()
        kind = kind_of(self._state, schema)
        always = kind.metadata(schema, wanted=False)
        chosen = next((name for name in kind.metadata(schema, wanted=True) if name not in always), "")
        if not chosen or (chosen in names) is self._options.metadata_columns:
            return self._options
        return replace(self._options, metadata_columns=chosen in names)

    def _changes_of(self, window: Window) -> WindowChanges:
        after_lsn = self._state.after_lsn(window.last_seq)
        segments = visible(window.segments, snapshot_lsn=after_lsn)
        until_lsn = self._options.last_lsn or NEWEST
        return WindowChanges(self._store, segments, self._state.schemas, after_lsn, until_lsn=until_lsn)

    def _read_at_once(self, changes: WindowChanges) -> Taken | None:
        return None if self._options.distributes(self._name) else changes.read_within(self._options.max_memory_bytes)

    @property
    def _name(self) -> str:
        return f"{self._state.schema_name}.{self._state.table_name}"

    @property
    def _distribution(self) -> Distribution:
        return Distribution.of(self._options, self._lake, self._state, removals_sent=self._removals_sent)

    def _versions(self, changes: WindowChanges, window: Window) -> list[TableSchema]:
        """At least the schema versions of which a large window has changes. Those that the lake table
        has already may be among them without any.
        """
        assert self._state.snapshot is not None
        known = max(window.schema_version, self._state.snapshot.schema_version, self._lake_version)
        older = {segment.schema_version for segment in changes.segments if segment.schema_version <= known}
        newer = [segment for segment in changes.segments if segment.schema_version > known]
        found = [self._state.schemas[number] for number in sorted(older)]
        return found + (self._distribution.versions(newer, changes) if newer else [])

    def _distributed(self, changes: WindowChanges, schema: TableSchema, window: Window) -> Count | None:
        """Commits a large window by Spark's executors; None when they cannot."""
        if not self._options.may_distribute(self._name):
            return None
        with self._distribution.window(
            changes.segments,
            schema,
            after_lsn=changes.after_lsn,
            until_lsn=changes.until_lsn,
            origins=window.origins,
        ) as distributed:
            if not self._lake.commit_window(window.last_seq, distributed):
                return None
            return distributed.count

    def _here(
        self,
        changes: WindowChanges,
        at_once: Taken | None,
        versions: Sequence[TableSchema],
        window: Window,
        planned: Planned | None,
    ) -> Count:
        """Commits a window that this process folds, or has folded ahead."""
        count = Count()
        planner = Planner.of(
            self._options,
            self._lake,
            self._handover,
            self._state,
            versions[-1],
            removals_sent=self._removals_sent,
            origins=window.origins,
        )
        with self._handover.pieces() as pieces:
            if planned is not None and planned.basis == planner.basis:
                plan, count = planned.plan, planned.count
                pieces.take(planned.rows)
            elif at_once is not None:
                plan = planner.at_once(count.over(at_once), pieces)
            else:
                plan = planner.in_portions(changes, count, versions, pieces)
            if self._following is not None and at_once is not None:
                following = self._following.window
                self._following.begin(
                    self._changes_of(following),
                    replace(planner, origins=following.origins),
                    before=window,
                    beside=at_once,
                    limit=self._options.max_memory_bytes,
                )
            if plan is not None:
                self._lake.commit_plan(window.last_seq, plan=plan, pieces=pieces)
        return count

    def _evolve(self, number: int, *, since: int) -> int:
        known = {version: schema.carried for version, schema in self._state.schemas.items() if version >= since}
        shapes = {
            version: evolution.Shape(schema, tuple(lake_columns(self._options, self._state, schema)))
            for version, schema in known.items()
        }
        kind = kind_of(self._state, known[number])
        return evolution.evolve(
            self._lake, shapes, number, since=since, keeps_changes=kind.keeps_changes, current=kind.current
        )
