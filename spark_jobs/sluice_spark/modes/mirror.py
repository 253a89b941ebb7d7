"""The lake table equals the source table: one MERGE, append or overwrite per window, by key.

Owns the choice of the cheapest statement that is right. Must not look at values.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import ManifestCorrupt, UnsupportedChange
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH, Folded, fold, unchanged_flags
from sluice_spark.fold.ranges import KeyRanges
from sluice_spark.lake.evolution import METADATA_TYPES
from sluice_spark.lake.merge import MergePlan, merge_text, metadata_columns, quote
from sluice_spark.modes.target import Target

VIEW = "sluice_window"
_FLAGS = (DELETED, MATCH)


def lake_columns(schema: TableSchema, *, metadata: bool) -> list[tuple[str, str]]:
    """The columns of a mirror table, in order."""
    own = [(column.name, column.lake.sql) for column in schema.columns]
    return own + [(name, METADATA_TYPES[name]) for name in metadata_columns(schema, wanted=metadata)]


def apply_changes(target: Target, portions: Iterable[pa.Table], *, version: int, keyed: bool = False) -> None:
    """Commits the net effect of a window with the marker `version`. It comes in portions, no two of
    which touch the same row.

    `keyed` says that there may be several. A window whose changes cancel out leaves nothing to
    commit: done again with later ones it is still nothing.
    """
    schema = target.schema
    columns = lake_columns(schema, metadata=target.metadata)
    mode = ""
    plan: MergePlan | None = None
    with target.handover.pieces() as pieces:
        for rows in portions:
            folded = fold(rows, schema, keyed=keyed, removals_sent=target.removals_sent)
            refuse_unplaced(folded.rows, schema)
            mode = "overwrite" if folded.replaces else "append" if folded.append else ""
            if not mode and len(folded.rows):
                part = plan_for(folded, schema, metadata=target.metadata)
                plan = plan.plus(part) if plan else part
            pieces.add(_with_flags(folded, schema) if keyed and not mode else folded.rows)
        if mode == "overwrite" or (mode and pieces.rows):
            target.lake.write(target.app_id, version, frame=pieces.frame(columns), mode=mode)
        elif plan is not None:
            _merge(target, pieces.frame(columns + _working_columns(plan)), plan, version=version)


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


def _merge(target: Target, frame: DataFrame, plan: MergePlan, *, version: int) -> None:
    frame.createOrReplaceTempView(VIEW)
    if plan.ranges and not plan.ranges.worth_their_cost(files=target.lake.file_count()):
        plan = replace(plan, ranges=KeyRanges())
    try:
        target.lake.execute(
            target.app_id, version, statement=merge_text(plan, target=target.lake.expression, source=quote(VIEW))
        )
    finally:
        target.lake.session.catalog.dropTempView(VIEW)


def _with_flags(folded: Folded, schema: TableSchema) -> pa.Table:
    """With a flag for every column: which ones another portion needs is not known yet."""
    rows = folded.rows
    for column in schema.columns:
        if column not in folded.kept:
            rows = rows.append_column(f"{KEEP}{column.attnum}", pa.repeat(pa.scalar(value=False), len(rows)))
    return rows


def plan_for(folded: Folded, schema: TableSchema, *, metadata: bool) -> MergePlan:
    """Which clauses the folded window needs."""
    deleted = folded.rows[DELETED].to_numpy()
    return MergePlan(
        schema,
        kept=folded.kept,
        metadata=metadata_columns(schema, wanted=metadata),
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
