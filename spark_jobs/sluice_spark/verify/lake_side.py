"""One lake table as of one position, hashed by ranges of its keys.

Owns that what is hashed is the table as of exactly that position: a version that has nothing from
after it, and on top the changes that it lacks. Reads only. The other side is
`sluice.operate.compare.source_side`.
"""

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from sluice.contract import envelope
from sluice.contract.row_form import PROBES, LakeAnswer, LakeQuestion
from sluice.errors import ApplyError
from sluice.manifest.targets import lake_tables
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore
from sluice_spark.distributed.stages import Stages, results
from sluice_spark.fold.fold import Folded
from sluice_spark.kinds.kind import Kind, removals_are_sent
from sluice_spark.kinds.registry import kind_of
from sluice_spark.lake.failures import translated_errors
from sluice_spark.options import ApplyOptions
from sluice_spark.read.changes import unite
from sluice_spark.verify.hashing import Hashes, hash_texts
from sluice_spark.verify.position import Position, Positions
from sluice_spark.verify.scan import ScanTask, scan
from sluice_spark.verify.scan_result import ScanResult
from sluice_spark.verify.unapplied_changes import UnappliedChanges, nothing
from sluice_spark.verify.version import wait_for

_NONE: Hashes = np.empty(0, np.uint64)
_SEEDS = 1 << 64


class LakeSide:
    """The lake tables of one pipeline, whose spool is in `store`."""

    def __init__(self, options: ApplyOptions, store: ObjectStore, session: SparkSession) -> None:
        self._options = options
        self._store = store
        self._session = session
        self._positions = Positions(options, store, session)
        self._known: dict[tuple[str, int], Position] = {}

    def answer(self, question: LakeQuestion) -> LakeAnswer:
        """Raises ApplyError when a later question may be answered, StoreError, ManifestCorrupt."""
        if tuple(_signed(hash_texts(_probes(question), question.seed % _SEEDS))) != question.probes:
            return LakeAnswer(refused="the server computes other hashes than this machine")
        key = question.key
        pipeline = wait_for(self._store, lsn=question.lsn, seconds=0 if question.ranges else question.wait_seconds)
        state = lake_tables(pipeline, self._options.targets_of).get(key)
        if state is None:
            name = pipeline.tables[question.table_id].source_name
            raise ApplyError(f"its source table is called {name} by now, which has other lake tables by configuration")
        with translated_errors():
            # The position in front of a gap stays, and its version does not: each comparison begins with the sums.
            known = self._known.get((key, question.lsn)) if question.ranges else None
            if known is None:
                known = self._positions.find(state, question)
                self._known = {(key, question.lsn): known}
            return self._answered(question, pipeline, state, known)

    def _answered(
        self,
        question: LakeQuestion,
        pipeline: PipelineState,
        state: TableState,
        position: Position,
    ) -> LakeAnswer:
        schema = state.schemas[question.schema_version].carried
        kind = kind_of(state, schema)
        if refused := kind.not_comparable(schema):
            return LakeAnswer(refused=refused)
        united = unite(position.changes, schema) if position.changes else None
        task = ScanTask(schema, (), question.seed % _SEEDS, question.bits, question.as_hex, _NONE, question.ranges)
        removals = removals_are_sent(pipeline.opened, state)
        net = kind.present_net(united, schema, removals_sent=removals) if united is not None else None
        if isinstance(net, Folded):
            changed = UnappliedChanges.of(net, schema, task.keys)
            gathered = self._scanned(state, position, task, kind, changed=changed)
            keys = _concatenated([task.keys.hashes(rows) for rows in gathered.changed])
            base = pa.concat_tables(gathered.changed) if gathered.changed else nothing(schema)
            gathered.add(changed.rows(base, keys))
            count = len(changed.folded.rows)
        else:
            count = len(united) if united is not None else 0
            gathered = self._scanned(state, position, task, kind, empty=net is not None and net.replaces)
            if net is not None:
                gathered.add(net.rows, times=net.net)
        return LakeAnswer(
            position.version.number,
            position.version.lsn,
            count,
            sums=gathered.sums.listed() if not question.ranges else (),
            rows=tuple(gathered.listed()),
        )

    def _scanned(
        self,
        state: TableState,
        position: Position,
        task: ScanTask,
        kind: Kind,
        *,
        changed: UnappliedChanges | None = None,
        empty: bool = False,
    ) -> ScanResult:
        if empty or (changed is not None and changed.replaces):
            return ScanResult(task)
        names = [*(column.name for column in task.schema.columns), envelope.SPECIAL]
        frame = self._positions.rows(state, position.version, names, kind.present)
        removed = changed.removed if changed is not None else _NONE
        given = ScanTask(task.schema, tuple(names), task.seed, task.bits, task.as_hex, removed, task.ranges)
        stages = Stages(self._session)
        try:
            return ScanResult(given, results(stages.collected(stages.of_rows(frame, scan, given))))
        finally:
            stages.close()


def _probes(question: LakeQuestion) -> pa.Array:
    return pa.array([text.encode().hex() if question.as_hex else text for text in PROBES])


def _signed(hashes: Hashes) -> list[int]:
    signed: list[int] = hashes.view(np.int64).tolist()
    return signed


def _concatenated(parts: list[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else _NONE
