"""The lake table equals the source table: one MERGE, append or overwrite per window, by key.

Owns the choice of the cheapest commit that is right. Must not look at values.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

import pyarrow as pa

from sluice.contract.entries import Segment
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH, Folded, fold
from sluice_spark.kinds.kind import Kind, Target, refuse_unplaced
from sluice_spark.kinds.rows import ROWS
from sluice_spark.kinds.soft_deletes import SoftDeletes
from sluice_spark.lake.plan import CommitPlan, MergePlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.read.changes import only_inserts

_FLAGS = (DELETED, MATCH)


class Mirror(Kind):
    """The present rows. A table without a key is mirrored by `keyless`."""

    name = "mirror"
    keyless: ClassVar[Kind] = ROWS

    def configured(self, target: LakeTarget) -> Kind:
        return SoftDeletes(target.soft_delete_retention) if target.deletes == "soft" else self

    @property
    def variants(self) -> tuple[Kind, ...]:
        return (SoftDeletes(),)

    def of(self, schema: TableSchema) -> Kind:
        return self if schema.key_columns else self.keyless

    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        # The key of an inserted row is free in the lake if every removal is sent.
        return removals_sent and only_inserts(segments)

    def net(self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True) -> Folded:
        folded = fold(rows, schema, keyed=keyed, removals_sent=removals_sent, carried=self.carried)
        refuse_unplaced(folded.rows, schema)
        return folded

    def plan(self, target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool) -> CommitPlan | None:
        schema, columns = target.schema, self.columns(target.schema, metadata=target.metadata)
        metadata = self.metadata(schema, wanted=target.metadata)
        action: Literal["append", "overwrite"] | None = None
        merge: MergePlan | None = None
        for rows in portions:
            folded = self.net(rows, schema, keyed=keyed, removals_sent=target.removals_sent)
            action = "overwrite" if folded.replaces else "append" if folded.append else None
            if not action and len(folded.rows):
                part = MergePlan.of(folded, schema, metadata=metadata)
                merge = merge.plus(part) if merge else part
            pieces.add(_with_flags(folded, schema) if keyed and not action else folded.rows)
        if action == "overwrite" or (action and pieces.rows):
            return CommitPlan(action, tuple(columns))
        return CommitPlan(merge, (*columns, *_working_columns(merge))) if merge is not None else None


KIND = Mirror()


def _with_flags(folded: Folded, schema: TableSchema) -> pa.Table:
    """With a flag for every column: another portion may need it."""
    rows = folded.rows
    for column in schema.columns:
        if column not in folded.kept:
            rows = rows.append_column(f"{KEEP}{column.attnum}", pa.repeat(pa.scalar(value=False), len(rows)))
    return rows


def _working_columns(plan: MergePlan) -> list[tuple[str, str]]:
    working: list[tuple[str, str]] = []
    for position, column in enumerate(plan.schema.key_columns):
        working.append((f"{KEY}{position}", column.lake.sql))
        if column.lake.special:
            working.append((f"{KEY_SPECIAL}{position}", "string"))
    working += [(name, "boolean") for name in (*_FLAGS, *(f"{KEEP}{column.attnum}" for column in plan.kept))]
    # Without metadata columns the order's columns are not handed over; everything the statement
    # reads is.
    return working
