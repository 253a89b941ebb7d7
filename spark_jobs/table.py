"""One window of one table, from segments to a commit.

Owns the order of steps that makes a replay harmless: read and check the bytes, follow the schema, fold, commit with the marker. Runs in a worker thread
on a private session; the caller sees to it that no two windows of one table run at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from service import faults
from service.contract import columns as envelope
from service.contract import keys
from service.contract.schema import TableSchema
from service.errors import UnsupportedChange
from service.manifest.state import TableState
from service.store.base import ObjectStore
from spark_jobs import evolution, storage
from spark_jobs.delta import LakeTable
from spark_jobs.handover import Handover, struct
from spark_jobs.merge import metadata_columns
from spark_jobs.modes import changelog, mirror, whole_rows
from spark_jobs.modes.target import Target
from spark_jobs.options import CHANGELOG, ApplyOptions
from spark_jobs.segments import checked_bytes, read_rows, unite
from spark_jobs.window import Window, visible

ROWS_MODE = "mirror of whole rows"


@dataclass(frozen=True, slots=True)
class Applied:
    """What a window did. `rows` counts changes, `commit_time_us` is the newest commit time among them (0: none)."""

    delta_version: int
    rows: int
    schema_version: int
    commit_time_us: int = 0
    committed: bool = True


def application_id(pipeline: str, state: TableState) -> str:
    """The name of the marker of one generation of one table."""
    return f"sluice/{pipeline}/{state.table_id}/{state.generation}"


def mode_of(options: ApplyOptions, schema: TableSchema) -> str:
    """What the lake table of `schema` holds: MIRROR, CHANGELOG or ROWS_MODE."""
    configured = options.mode_of(schema.qualified_name)
    if configured == CHANGELOG or schema.key_columns:
        return configured
    return ROWS_MODE if schema.replica_identity == "f" else CHANGELOG


def lake_table(options: ApplyOptions, state: TableState, session: SparkSession, *, before_commit: Callable[[], None]) -> LakeTable:
    """The Delta table of a source table."""
    path = storage.join(options.lake_uri, keys.lake_path(state.schema_name, state.table_name))
    return LakeTable(session, path, before_commit=before_commit)


class TableApply:
    """Applies windows of one table in the state `state` on one session."""

    def __init__(
        self, options: ApplyOptions, store: ObjectStore, session: SparkSession, *, state: TableState, before_commit: Callable[[], None], known_version: int = 0
    ) -> None:
        """`known_version` is the schema version that this process has brought the lake table to (0: not known)."""
        self._known_version = known_version
        self._options = options
        self._store = store
        self._session = session
        self._state = state
        self._spool_path = storage.join(options.spool_uri, options.pipeline)
        self._lake = lake_table(options, state, session, before_commit=before_commit)
        self._app_id = application_id(options.pipeline, state)

    def apply(self, window: Window) -> Applied:
        """Commits `window`. Raises UnsupportedChange when the table cannot follow, ApplyError or a StoreError when it may work later."""
        return self._copy(window) if window.is_copy else self._changes(window)

    def _copy(self, window: Window) -> Applied:
        copy = self._state.copy
        assert copy is not None
        if any(segment.schema_version != copy.schema_version for segment in window.segments):
            raise UnsupportedChange("the copy has rows of several schema versions")
        schema = self._state.schemas[copy.schema_version]
        evolution.refuse_alike(schema)
        for segment in window.segments:
            checked_bytes(self._store, segment)
        columns = self._columns(schema)
        paths = [f"{self._spool_path}/{segment.key}" for segment in window.segments if segment.rows]
        stamped = self._stamped(columns, paths, snapshot_lsn=copy.snapshot_lsn)
        self._lake.write(self._app_id, window.last_seq, frame=stamped, mode="overwrite", new_schema=True)
        return Applied(self._lake.version(), sum(segment.rows for segment in window.segments), copy.schema_version)

    def _stamped(self, columns: list[tuple[str, str]], paths: list[str], *, snapshot_lsn: int) -> DataFrame:
        frame = self._session.read.schema(struct(columns)).parquet(*paths) if paths else self._session.createDataFrame([], struct(columns))
        names = [name for name, _ in columns]
        return frame.withColumn(envelope.LSN, sql.lit(snapshot_lsn).cast("bigint")) if envelope.LSN in names else frame

    def _columns(self, schema: TableSchema) -> list[tuple[str, str]]:
        if mode_of(self._options, schema) == CHANGELOG:
            return changelog.lake_columns(schema)
        return mirror.lake_columns(schema, metadata=self._options.metadata_columns)

    def _changes(self, window: Window) -> Applied:
        copy = self._state.copy
        assert copy is not None
        parts: list[tuple[pa.Table, TableSchema]] = []
        for segment in visible(window.segments, snapshot_lsn=copy.snapshot_lsn):
            rows = read_rows(self._store, segment, after_lsn=copy.snapshot_lsn)
            if len(rows):
                parts.append((rows, self._state.schemas[segment.schema_version]))
        if not parts:
            return Applied(self._lake.version(), 0, 0, committed=False)
        schema = max((version for _, version in parts), key=lambda version: version.version)
        if schema.version != self._known_version:
            self._evolve(schema, since=copy.schema_version)
        # A changelog keeps changes as they were sent: what a column means for rows older than it is no change.
        is_log = mode_of(self._options, schema) == CHANGELOG
        rows = unite(parts, schema, constants=not is_log)
        if is_log:
            rows = changelog.with_origins(rows, window.origins)
        handover = Handover(self._session, self._store, scratch_path=self._spool_path)
        target = Target(self._lake, handover, schema, self._app_id, metadata=self._options.metadata_columns)
        {CHANGELOG: changelog.apply_changes, ROWS_MODE: whole_rows.apply_changes}.get(mode_of(self._options, schema), mirror.apply_changes)(
            target, rows, version=window.last_seq
        )
        newest = pc.max(rows[envelope.TS]).cast(pa.int64()).as_py()
        return Applied(self._lake.version(), len(rows), schema.version, newest or 0)

    def _evolve(self, schema: TableSchema, *, since: int) -> None:
        app_id = f"{self._app_id}/schema"
        added = evolution.added_columns(self._state.schemas, since=since, until=schema.version)
        is_log = mode_of(self._options, schema) == CHANGELOG
        metadata = changelog.metadata_names(schema) if is_log else metadata_columns(schema, wanted=self._options.metadata_columns)
        lake = self._lake.columns()
        done = self._lake.marker(app_id) or since
        fresh = evolution.added_columns(self._state.schemas, since=done, until=schema.version) if done < schema.version else ()
        steps = evolution.plan(fresh, schema=schema, metadata=metadata, lake=lake, with_constants=not is_log)
        if is_log and any(column.identity for column in added):
            raise UnsupportedChange(f"{schema.qualified_name}: the old rows of a changelog gained a column")
        if steps.additions:
            self._lake.alter(f"ALTER TABLE {self._lake.expression} ADD COLUMNS ({', '.join(steps.additions)})")
        faults.point("apply.schema.altered")
        if steps.constants:
            self._lake.execute(app_id, schema.version, statement=f"UPDATE {self._lake.expression} SET {', '.join(steps.constants)}")
