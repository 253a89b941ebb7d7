"""What kinds have in common whose rows outlive a change: a window names keys, and its settlement says what becomes
of the rows of the lake that have them.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Literal

import pyarrow as pa

from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import DELETED, KEY, KEY_SPECIAL, MATCH, Folded, fold
from sluice_spark.kinds.kind import Kind, Target
from sluice_spark.lake.plan import CommitPlan, MergePlan
from sluice_spark.lake.rows_to_commit import HeldRows


class Settled(Kind):
    """Plans one merge with a settlement. A snapshot that comes later meets the rows that there are."""

    not_in_parts = "its rows are compared with those that the lake table has"
    keeps_rows = True

    @abstractmethod
    def net(
        self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True
    ) -> Folded: ...

    def present_net(self, rows: pa.Table, schema: TableSchema, *, removals_sent: bool) -> Folded:
        return fold(rows, schema, keyed=True, removals_sent=removals_sent)

    def plan(self, target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool) -> CommitPlan | None:
        schema, columns = target.schema, tuple(self.columns(target.schema, metadata=target.metadata))
        metadata = self.metadata(schema, wanted=target.metadata)
        # A net change may name another one of its portion by its place.
        pieces.as_added = True
        merge: MergePlan | None = None
        action: Literal["append"] | None = None
        for rows in portions:
            folded = self.net(rows, schema, keyed=keyed, removals_sent=target.removals_sent)
            if folded.append:
                action = "append"
            elif len(folded.rows) or folded.sweep is not None:
                part = MergePlan.of(folded, schema, metadata=metadata)
                merge = merge.plus(part) if merge is not None else part
            pieces.add(folded.rows)
        if action is not None:
            return CommitPlan(action, columns) if pieces.rows else None
        return CommitPlan(merge, (*columns, *key_columns(schema))) if merge is not None else None


def key_columns(schema: TableSchema) -> list[tuple[str, str]]:
    """The columns by which a statement finds rows of the lake."""
    working: list[tuple[str, str]] = []
    for position, column in enumerate(schema.key_columns):
        working.append((f"{KEY}{position}", column.lake.sql))
        if column.lake.special:
            working.append((f"{KEY_SPECIAL}{position}", "string"))
    return [*working, (DELETED, "boolean"), (MATCH, "boolean")]
