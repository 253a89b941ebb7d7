"""One window of one table, from segments to a commit.

Owns the order of steps that makes a replay harmless: read and check the bytes, follow the schema,
fold, commit with the marker. Runs in a worker thread on a private session; the caller sees to it
that no two windows of one table run at once. A window that fits in `max_memory_bytes` is folded at
once, a larger one in portions of at most that, and either way there is one commit.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from sluice import faults
from sluice.contract import envelope, keys
from sluice.contract.entries import Opened
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange, WriterFenced
from sluice.manifest.state import TableState
from sluice.store.base import ObjectStore
from sluice_spark import storage
from sluice_spark.fold.spill import Versioned, coalesced, portions
from sluice_spark.lake import evolution
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.handover import Handover, struct
from sluice_spark.lake.merge import metadata_columns
from sluice_spark.lake.table import LakeTable, Place
from sluice_spark.modes import changelog, mirror, whole_rows
from sluice_spark.modes.target import Target
from sluice_spark.options import CHANGELOG, MIRROR, ApplyOptions
from sluice_spark.read.changes import Count, WindowChanges, checked_bytes, unite, versions_in
from sluice_spark.read.window import Window, visible

ROWS_MODE = "mirror of whole rows"
_OPS = {
    envelope.OP_INSERT: "insert",
    envelope.OP_UPDATE: "update",
    envelope.OP_DELETE: "delete",
    envelope.OP_TRUNCATE: "truncate",
}


@dataclass(frozen=True, slots=True)
class Applied:
    """What a window did. `place` is where the lake table stands since then, `through_seq` the last
    entry of which nothing is left to do.

    `rows` counts changes, `commit_time_us` is the newest commit time among them (0: none). `ops`
    are the rows by what they did, `seconds` the time by phase, both in the words of the metrics.
    """

    place: Place
    through_seq: int
    rows: int = 0
    schema_version: int = 0
    commit_time_us: int = 0
    committed: bool = True
    ops: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


def application_id(pipeline: str, state: TableState, *, manifest: str) -> str:
    """The name of the marker of one generation of one table in one manifest.

    A spool that was lost begins again with entry 1, under the same names: what an older manifest's
    marker says must not hold for it.
    """
    return f"sluice/{pipeline}/{state.table_id}/{state.generation}/{manifest}"


def mode_of(options: ApplyOptions, schema: TableSchema) -> str:
    """What the lake table of `schema` holds: MIRROR, CHANGELOG or ROWS_MODE."""
    configured = options.mode_of(schema.qualified_name)
    if configured == CHANGELOG or schema.key_columns:
        return configured
    return ROWS_MODE if schema.replica_identity == "f" else CHANGELOG


OTHER_MODE = "the lake table holds a "


def other_mode(options: ApplyOptions, state: TableState, columns: Iterable[str]) -> str:
    """Why a lake table that has these columns is not what the configuration asks for, empty when it
    is. What it holds decides, not what was written of it.
    """
    schema = state.schemas[state.schema_version]
    held, wanted = (CHANGELOG if envelope.OP in columns else MIRROR), mode_of(options, schema)
    if (held == CHANGELOG) == (wanted == CHANGELOG):
        return ""
    name = schema.qualified_name
    return (
        f"{OTHER_MODE}{held} and the mode that is configured is {wanted}; set the mode back, or `sluice "
        f"copy {name}` copies it again in the new one"
    )


def removals_are_sent(opened: Opened | None, state: TableState) -> bool:
    """Whether the stream has every change that takes a key away from a row, so that a key that is
    inserted is free in the lake too.

    Neither is known of one change alone: what a publication leaves out, or replication brought to a
    source whose `origin` is `none`, is in no entry. A table whose publication changes is stale, and
    so is one that was followed with another `origin`: what holds now held since the copy.
    """
    return opened is not None and opened.origin == "any" and set("iudt") <= set(state.publishes)


def lake_table(
    options: ApplyOptions,
    state: TableState,
    session: SparkSession,
    *,
    manifest: str,
    before_commit: Callable[[], None],
    place: Place | None = None,
) -> LakeTable:
    """The Delta table of a source table."""
    path = storage.join(options.lake_uri, keys.lake_path(state.schema_name, state.table_name))
    app_id = application_id(options.pipeline, state, manifest=manifest)
    return LakeTable(session, path, app_id=app_id, before_commit=before_commit, place=place)


class TableApply:
    """Applies windows of one table in the state `state` on one session."""

    def __init__(
        self,
        options: ApplyOptions,
        store: ObjectStore,
        session: SparkSession,
        *,
        manifest: str,
        state: TableState,
        before_commit: Callable[[], None],
        removals_sent: bool,
        place: Place | None = None,
        begun_seq: int = 0,
        known_version: int = 0,
    ) -> None:
        """`manifest` is the identity of the one in `store`, `place` where the lake table was last
        known to stand.

        `begun_seq` is the furthest entry that this process has begun a window for: an attempt that
        failed may have landed there. `known_version` is the schema version that this process has
        brought the lake to (0: not known), `removals_sent` what `removals_are_sent` says.
        """
        self._removals_sent = removals_sent
        self._begun_seq = begun_seq
        self._known_version = known_version
        self._options = options
        self._store = store
        self._session = session
        self._state = state
        self._spool_path = storage.join(options.spool_uri, options.pipeline)
        self._lake = lake_table(options, state, session, manifest=manifest, before_commit=before_commit, place=place)
        self._seconds: dict[str, float] = {}
        self._app_id = self._lake.app_id

    def apply(self, window: Window) -> Applied:
        """Commits `window`, or says how much of it is in the lake already. A window without
        segments and without a new shape only looks.

        Raises UnsupportedChange when the table cannot follow, ApplyError or a StoreError when it
        may work later.
        """
        with translated_errors():
            faults.point("apply.window.before")
            with self._phase("look"):
                done = self._landed(window)
            if done is None:
                done = self._copy(window) if window.is_copy else self._changes(window)
            faults.point("apply.window.after")
            return done

    def _landed(self, window: Window) -> Applied | None:
        """What the lake has of `window`: an earlier attempt may have committed before it failed.
        None when there is work to do.

        Raises WriterFenced when the lake is further than anything that this process has begun.
        """
        before = self._lake.place
        place = self._lake.find(None) if window.is_copy and before.marker is None else self._lake.look()
        marker = place.marker
        if marker is None or marker == before.marker:
            return (
                None
                if window.segments or window.is_copy or window.schema_version
                else Applied(place, window.last_seq, committed=False, seconds=self._seconds)
            )
        if marker > max(window.last_seq, self._begun_seq) and before.seen:
            raise WriterFenced(
                f"the lake table records {self._app_id} at {marker}, past {window.last_seq} which was "
                "about to be applied",
                hint="another applier works on this lake; run one per pipeline",
            )
        return Applied(place, marker, committed=False, seconds=self._seconds)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    def _copy(self, window: Window) -> Applied:
        copy = self._state.copy
        assert copy is not None
        if any(segment.schema_version != copy.schema_version for segment in window.segments):
            raise UnsupportedChange("the copy has rows of several schema versions")
        schema = self._state.schemas[copy.schema_version]
        evolution.refuse_alike(schema)
        with self._phase("read"):
            for segment in window.segments:
                checked_bytes(self._store, segment)
        faults.point("apply.read.after")
        columns = self._columns(schema)
        if not columns:
            raise UnsupportedChange(
                f"{schema.qualified_name}: no column is left for the lake table, for none of the "
                "source table's is published and lake.metadata_columns is off;"
                " turn that on and copy the table again, or leave it out of source.tables"
            )
        paths = [f"{self._spool_path}/{segment.key}" for segment in window.segments if segment.rows]
        stamped = self._stamped(columns, paths, snapshot_lsn=copy.snapshot_lsn)
        with self._phase("merge"):
            self._lake.write(self._app_id, window.last_seq, frame=stamped, mode="overwrite", new_schema=True)
        rows = sum(segment.rows for segment in window.segments)
        return Applied(
            self._lake.place, window.last_seq, rows, copy.schema_version, ops={"copy": rows}, seconds=self._seconds
        )

    def _stamped(self, columns: list[tuple[str, str]], paths: list[str], *, snapshot_lsn: int) -> DataFrame:
        frame = (
            self._session.read.schema(struct(columns)).parquet(*paths)
            if paths
            else self._session.createDataFrame([], struct(columns))
        )
        names = [name for name, _ in columns]
        return frame.withColumn(envelope.LSN, sql.lit(snapshot_lsn).cast("bigint")) if envelope.LSN in names else frame

    def _columns(self, schema: TableSchema) -> list[tuple[str, str]]:
        if mode_of(self._options, schema) == CHANGELOG:
            return changelog.lake_columns(schema)
        return mirror.lake_columns(schema, metadata=self._options.metadata_columns)

    def _changes(self, window: Window) -> Applied:
        copy = self._state.copy
        assert copy is not None
        segments = visible(window.segments, snapshot_lsn=copy.snapshot_lsn)
        changes = WindowChanges(self._store, segments, self._state.schemas, copy.snapshot_lsn)
        with self._phase("read"):
            at_once = changes.within(self._options.max_memory_bytes)
            versions = changes.versions() if at_once is None else versions_in(at_once)
        faults.point("apply.read.after")
        newest = max([window.schema_version, copy.schema_version, *(version.version for version in versions)])
        if not versions and newest == copy.schema_version:
            return Applied(self._lake.place, window.last_seq, committed=False, seconds=self._seconds)
        schema = self._state.schemas[newest]
        if newest != self._known_version:
            with self._phase("schema"):
                self._evolve(schema, since=copy.schema_version)
        if not versions:
            return Applied(
                self._lake.place, window.last_seq, schema_version=newest, committed=False, seconds=self._seconds
            )
        versions = sorted({*versions, schema}, key=lambda one: one.version)
        count = Count()
        with self._phase("merge"):
            if at_once is not None:
                self._commit_at_once(list(count.over(at_once)), schema, window)
            else:
                self._commit_in_portions(changes, count, versions, window)
        ops = {_OPS[op]: rows for op, rows in count.ops.items()}
        committed = self._lake.place.marker == window.last_seq
        return Applied(
            self._lake.place,
            window.last_seq,
            count.rows,
            schema.version,
            count.commit_time_us,
            committed=committed,
            ops=ops,
            seconds=self._seconds,
        )

    def _commit_at_once(self, changes: list[Versioned], schema: TableSchema, window: Window) -> None:
        rows = self._united(schema, window.origins)(changes)
        if mode_of(self._options, schema) == CHANGELOG:
            changelog.append_changes(
                self._target(schema), [rows], columns=self._columns(schema), version=window.last_seq
            )
        else:
            self._net_effect(schema)(self._target(schema), [rows], version=window.last_seq)

    def _commit_in_portions(
        self, changes: WindowChanges, count: Count, versions: Sequence[TableSchema], window: Window
    ) -> None:
        schema, limit = versions[-1], self._options.max_memory_bytes
        coming = coalesced(count.over(changes), limit=limit // 4)
        united = self._united(schema, window.origins)
        if mode_of(self._options, schema) == CHANGELOG:
            changelog.append_changes(
                self._target(schema),
                (united([item]) for item in coming),
                columns=self._columns(schema),
                version=window.last_seq,
            )
        elif changes.only_inserts and self._appends(schema):
            new = (mirror.all_new(united([item]), schema) for item in coming)
            changelog.append_changes(self._target(schema), new, columns=self._columns(schema), version=window.last_seq)
        else:
            cutter = changes.cutter(versions, limit=limit)
            with closing(portions(coming, cutter, limit=limit)) as cut:
                self._net_effect(schema)(self._target(schema), map(united, cut), version=window.last_seq, keyed=True)

    def _united(
        self, schema: TableSchema, origins: Mapping[int, tuple[str, int]]
    ) -> Callable[[Iterable[Versioned]], pa.Table]:
        if mode_of(self._options, schema) != CHANGELOG:
            return partial(unite, schema=schema, constants=True)
        # A changelog keeps changes as they were sent: what a column means for rows older than it is
        # no change.
        return lambda parts: changelog.with_origins(unite(parts, schema, constants=False), origins)

    def _net_effect(self, schema: TableSchema) -> Callable[..., None]:
        return whole_rows.apply_changes if mode_of(self._options, schema) == ROWS_MODE else mirror.apply_changes

    def _appends(self, schema: TableSchema) -> bool:
        """Whether an inserted row is one more, whatever the lake holds."""
        return self._removals_sent or mode_of(self._options, schema) == ROWS_MODE

    def _target(self, schema: TableSchema) -> Target:
        handover = Handover(self._session, self._store, scratch_path=self._spool_path)
        return Target(
            self._lake,
            handover,
            schema,
            self._app_id,
            metadata=self._options.metadata_columns,
            removals_sent=self._removals_sent,
        )

    def _evolve(self, schema: TableSchema, *, since: int) -> None:
        app_id = f"{self._app_id}/schema"
        added = evolution.added_columns(self._state.schemas, since=since, until=schema.version)
        is_log = mode_of(self._options, schema) == CHANGELOG
        metadata = (
            changelog.metadata_names(schema)
            if is_log
            else metadata_columns(schema, wanted=self._options.metadata_columns)
        )
        lake = self._lake.columns()
        done = self._lake.marker(app_id) or since
        fresh = (
            evolution.added_columns(self._state.schemas, since=done, until=schema.version)
            if done < schema.version
            else ()
        )
        steps = evolution.plan(fresh, schema=schema, metadata=metadata, lake=lake, with_constants=not is_log)
        if is_log and any(column.identity for column in added):
            raise UnsupportedChange(f"{schema.qualified_name}: the old rows of a changelog gained a column")
        if steps.additions:
            self._lake.alter(f"ALTER TABLE {self._lake.expression} ADD COLUMNS ({', '.join(steps.additions)})")
        faults.point("apply.schema.altered")
        if steps.constants:
            self._lake.execute(
                app_id, schema.version, statement=f"UPDATE {self._lake.expression} SET {', '.join(steps.constants)}"
            )
