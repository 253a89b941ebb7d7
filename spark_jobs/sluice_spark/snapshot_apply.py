"""The snapshot of one table, from its segments to the lake table.

Owns that readers never see a part of it: a snapshot of several entries is applied part by part to a table of
its own (`sluice_spark.lake.build`), and comes into the lake table in one commit with the marker, however it
was read. Where parts cannot be, or are not all there, it is read as a whole.
"""

from collections.abc import Sequence
from contextlib import suppress

import structlog

from sluice import faults
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError, StoreError, UnsupportedChange
from sluice.manifest.snapshot_state import SnapshotState
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice_spark.distributed.distribution import Distribution
from sluice_spark.distributed.snapshot_parts import SnapshotParts
from sluice_spark.kinds.registry import kind_of, snapshot_columns
from sluice_spark.lake.arranging import require_partitions, uncluster, words_of
from sluice_spark.lake.build import BuildLost, BuildTable, Exchange
from sluice_spark.lake.commit_way import DIRECT, NotDirect
from sluice_spark.lake.table import LakeTable
from sluice_spark.options import AUTO, ApplyOptions
from sluice_spark.read.changes import SnapshotRows
from sluice_spark.read.window import Window

_log = structlog.get_logger("sluice.apply")


class SnapshotApply:
    """Applies the snapshot of the table in the state `state` to `lake`. `build` is where its parts go; without it there
    are none.
    """

    def __init__(
        self,
        options: ApplyOptions,
        store: ObjectStore,
        lake: LakeTable,
        state: TableState,
        *,
        build: BuildTable | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._lake = lake
        self._state = state
        self._build = build
        self._name = f"{state.schema_name}.{state.table_name}"

    def apply_part(self, window: Window) -> tuple[int, str]:
        """Brings a part beside the lake table. Returns how many rows came, or 0 and why that cannot be: then the
        snapshot is to be applied as a whole. Raises ManifestCorrupt, ApplyError, StoreError.
        """
        try:
            self._lake.require_replaceable()
            return self._parts().bring(window.chunks, lake=self._lake, changed=window.changed), ""
        except (NotDirect, UnsupportedChange) as reason:
            return self._refused(str(reason))
        except ApplyError:
            # Somebody's VACUUM, perhaps: another attempt would fail as well.
            if lost := self._lost():
                return self._refused(lost)
            raise

    def _refused(self, reason: str) -> tuple[int, str]:
        _log.warning("a snapshot is not applied in parts", table=self._name, reason=reason)
        return 0, reason

    def _lost(self) -> str:
        """What of the parts is no longer there, empty when all of it is."""
        try:
            if self._build is not None and self._build.table.place.version >= 0:
                self._build.require_files()
        except BuildLost as reason:
            return str(reason)
        return ""

    def apply_whole(self, window: Window) -> int:
        """Commits the snapshot with the marker. Returns the rows that were not counted with a part. Raises
        UnsupportedChange, ManifestCorrupt, ApplyError, StoreError.
        """
        self._lake.require_replaceable()
        snapshot, marker = self._snapshot, window.last_seq
        if any(segment.schema_version != snapshot.schema_version for segment in window.segments):
            raise UnsupportedChange("the snapshot has rows of several schema versions")
        schema = self._state.schemas[snapshot.schema_version]
        columns = snapshot_columns(self._options, self._state, schema.carried)
        require_partitions(self._state.layout.partition_by, tuple(columns), schema.qualified_name)
        faults.point("apply.read.after")
        if self._lake.place.version >= 0:
            uncluster(self._lake, [name for name, _ in columns])
        # All rows of the snapshot are new.
        distribution = Distribution.of(self._options, self._lake, self._state, removals_sent=True)
        exchanged = bool(window.chunks) and self._exchange(window, columns)
        if exchanged:
            pass
        elif snapshot.first_lsn not in (0, snapshot.snapshot_lsn):
            distribution.snapshot_in_chunks(window.segments, columns, marker=marker)
        elif not self._small(window, schema, columns):
            distribution.snapshot(window.segments, schema, columns, lsn=snapshot.snapshot_lsn, marker=marker)
        self._forget_build()
        return 0 if exchanged else sum(segment.rows for segment in window.segments)

    @property
    def _snapshot(self) -> SnapshotState:
        assert self._state.snapshot is not None
        return self._state.snapshot

    def _parts(self) -> SnapshotParts:
        if self._build is None:
            raise NotDirect("there is no place for parts")
        if self._state.layout.partition_by or self._state.layout.without:
            raise NotDirect("the lake table has partitions, or no column mapping or deletion vectors")
        return SnapshotParts(self._options, self._build, self._state)

    def _exchange(self, window: Window, columns: Sequence[tuple[str, str]]) -> bool:
        """Makes the lake table of what the parts became; False when that is not the snapshot."""
        try:
            if self._build is None or not self._parts().has(window.chunks):
                return False
            try:
                self._lake.commit_newest(window.last_seq, Exchange(self._build, words_of(self._state, 0)))
            except NotDirect as reason:
                _log.info("the rows of a snapshot are copied", table=self._name, reason=str(reason))
                self._lake.replace(window.last_seq, frame=self._build.rows(tuple(columns)))
        except (NotDirect, UnsupportedChange, BuildLost) as reason:
            if self._lake.place.marker == window.last_seq:
                raise
            _log.warning("a snapshot is read again", table=self._name, reason=str(reason))
            return False
        return True

    def _forget_build(self) -> None:
        """What stays of it goes with the next vacuum."""
        if self._build is None:
            return
        faults.point("apply.exchange.after")
        with suppress(NotDirect, UnsupportedChange):
            self._parts().forget_keys()
        try:
            self._build.forget()
        except StoreError as error:
            _log.warning("the log of a snapshot's table stays", table=self._name, error=str(error), hint=error.hint)

    def _small(self, window: Window, schema: TableSchema, columns: Sequence[tuple[str, str]]) -> bool:
        """Makes the lake table of a few rows without a Spark job, where there is none and the way allows it."""
        if self._lake.place.version >= 0 or self._options.way_of(self._name) not in (AUTO, DIRECT):
            return False
        rows = SnapshotRows(self._store, window.segments, schema, self._snapshot.snapshot_lsn)
        fitting = rows.read_within(self._options.max_memory_bytes)
        if fitting is None:
            return False
        if len(fitting):
            fitting = kind_of(self._state, schema.carried).arrived(fitting)
        try:
            self._lake.create(window.last_seq, columns=tuple(columns), rows=fitting, words=words_of(self._state, 0))
        except NotDirect:
            return False
        return True
