"""The lake table equals the source table: one MERGE, append or overwrite per window, by key.

Owns the choice of the cheapest statement that is right. Must not look at values.
"""

from collections.abc import Iterable
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import ManifestCorrupt, UnsupportedChange
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH, Folded, fold, unchanged_flags
from sluice_spark.fold.ranges import KeyRanges
from sluice_spark.lake.columns import mirror_columns, mirror_metadata
from sluice_spark.lake.plan import CommitPlan, MergePlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.modes.target import Target

_FLAGS = (DELETED, MATCH)


def plan(target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool = False) -> CommitPlan | None:
    """Folds a window and hands its net effect to `pieces`. The window comes in portions, no two of
    which touch the same row; `keyed` says that there may be several.

    Returns None when the changes cancel out, so that there is nothing to commit: applied again
    together with later changes they still cancel out.
    """
    schema = target.schema
    columns = mirror_columns(schema, metadata=target.metadata)
    action: Literal["append", "overwrite"] | None = None
    merge: MergePlan | None = None
    for rows in portions:
        folded = fold(rows, schema, keyed=keyed, removals_sent=target.removals_sent)
        refuse_unplaced(folded.rows, schema)
        action = "overwrite" if folded.replaces else "append" if folded.append else None
        if not action and len(folded.rows):
            part = merge_plan(folded, schema, metadata=target.metadata)
            merge = merge.plus(part) if merge else part
        pieces.add(_with_flags(folded, schema) if keyed and not action else folded.rows)
    if action == "overwrite" or (action and pieces.rows):
        return CommitPlan(action, tuple(columns))
    return CommitPlan(merge, (*columns, *_working_columns(merge))) if merge is not None else None


def all_new(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """`rows`, all of which the manifest calls inserted, to be appended as they are. Raises
    ManifestCorrupt, UnsupportedChange.
    """
    if not pc.all(pc.equal(rows[envelope.OP], envelope.OP_INSERT)).as_py() or unchanged_flags(rows, schema):
        raise ManifestCorrupt(
            f"{schema.qualified_name}: a segment that should hold inserted rows only holds other changes"
        )
    refuse_unplaced(rows, schema)
    return rows


def _with_flags(folded: Folded, schema: TableSchema) -> pa.Table:
    """With a flag for every column: another portion may need it."""
    rows = folded.rows
    for column in schema.columns:
        if column not in folded.kept:
            rows = rows.append_column(f"{KEEP}{column.attnum}", pa.repeat(pa.scalar(value=False), len(rows)))
    return rows


def merge_plan(folded: Folded, schema: TableSchema, *, metadata: bool) -> MergePlan:
    """Which clauses the folded window needs."""
    deleted = folded.rows[DELETED].to_numpy()
    return MergePlan(
        schema,
        kept=folded.kept,
        metadata=mirror_metadata(schema, wanted=metadata),
        deletes=bool(deleted.any()),
        upserts=bool((~deleted).any()),
        unmatched=not folded.rows[MATCH].to_numpy().all(),
        ranges=KeyRanges.of(folded.rows, schema),
    )


def refuse_unplaced(rows: pa.Table, schema: TableSchema) -> None:
    """A marked value must have a column to be kept in."""
    if not any(column.lake.special for column in schema.columns) and rows[envelope.SPECIAL].null_count != len(rows):
        raise UnsupportedChange(
            f"{schema.qualified_name}: a value was marked although every column's type holds all values"
        )


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
