"""A kind of lake table for the tests, made as docs/how-to/kinds.md says: every row that was ever inserted, as it was
then, and when. Nothing else leaves a trace, a TRUNCATE neither.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.lake_kinds import LakeKind
from sluice.contract.schema import TableSchema
from sluice_spark.fold.counted import Counted, count
from sluice_spark.kinds.kind import Kind, Target
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows


class Arrivals(Kind):
    name = "arrivals"
    sign = "_sluice_arrived"
    keeps_changes = True
    not_in_parts = "a row of a later chunk may have arrived before"

    def metadata(self, schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
        return ()

    def columns(self, schema: TableSchema, *, metadata: bool) -> list[tuple[str, str]]:
        return [*super().columns(schema, metadata=metadata), (self.sign, "timestamp")]

    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        return True

    def added(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        arrived = rows.filter(pc.equal(rows[envelope.OP], envelope.OP_INSERT))
        return arrived.append_column(self.sign, arrived[envelope.TS])

    def net(self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True) -> Counted:
        return count(self.added(rows, schema), schema)

    def plan(self, target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool) -> CommitPlan | None:
        added = (self.added(rows, target.schema) for rows in portions)
        return self.appended(added, pieces, self.columns(target.schema, metadata=target.metadata))

    def not_comparable(self, schema: TableSchema) -> str:
        return "the lake keeps what arrived, not what is there"


KIND = Arrivals()
LINE = LakeKind("arrivals", "keeps inserted rows", __name__, keeps_changes=True)
