"""One window after the other through one `Lake`, as a running applier applies them, without its loop."""

from sluice.contract.entries import Changes, Snapshot
from sluice.contract.schema import TableSchema
from sluice.manifest.reader import read_entries
from sluice.manifest.state import reduce
from sluice.manifest.targets import lake_tables
from sluice.manifest.values import PipelineState
from sluice_spark.applied_window import Applied
from sluice_spark.kinds.kind import removals_are_sent
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.opening import Lake
from sluice_spark.lake.table import LakeTable
from sluice_spark.read.window import Window
from sluice_spark.snapshot_apply import SnapshotApply
from sluice_spark.table_apply import TableApply
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline


class Windows:
    """Applies what is new in the manifest of `pipeline`, which has one table."""

    def __init__(self, pipeline: Pipeline, **options: object) -> None:
        self.pipeline = pipeline
        self.options = pipeline.options(**options)
        self.lake = Lake(self.options, pipeline.store, before_commit=lambda: None)
        self.session = pipeline.spark.newSession()
        self.place = ExaminedVersion()
        self.state = PipelineState()
        self.table: LakeTable | None = None

    def change(self, *changes: Change, schema: TableSchema | None = None) -> Applied:
        """One transaction as a window."""
        self.pipeline.change(*changes, schema=schema)
        return self.apply()

    def apply(self, *, entries: int | None = None) -> Applied:
        """Everything new, or so many entries of it, as one window; a snapshot ends a window."""
        store = self.pipeline.store
        new = []
        for entry, sha256 in read_entries(store, after_seq=self.state.seq, limit=entries):
            self.state = reduce(self.state, entry, sha256)
            new.append(entry)
        state = self.state
        (table,) = lake_tables(state, self.options.targets_of).values()
        is_snapshot = any(isinstance(entry.body, Snapshot) for entry in new)
        kind = Snapshot if is_snapshot else Changes
        segments = [segment for entry in new if isinstance(entry.body, kind) for segment in entry.body.segments]
        window = Window(tuple(segments), table.generation_seq if is_snapshot else state.seq, is_snapshot=is_snapshot)
        self.table = self.lake.table(table, self.session, place=self.place)
        applied = TableApply(
            self.options,
            store,
            self.table,
            self.lake.handover(self.session),
            SnapshotApply(self.options, store, self.table, table),
            state=table,
            removals_sent=removals_are_sent(state.opened, table),
            lake_version=table.schema_version,
        ).apply(window)
        self.place = applied.place
        return applied
