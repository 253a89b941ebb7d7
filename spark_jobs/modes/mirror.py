"""The lake table equals the source table: one MERGE, append or overwrite per window, by key.

Owns the choice of the cheapest statement that is right. Must not look at values.
"""

import pyarrow as pa
from pyspark.sql import functions

from service.contract import columns as envelope
from service.contract.schema import TableSchema
from service.errors import UnsupportedChange
from spark_jobs.evolution import METADATA_TYPES
from spark_jobs.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH, Folded, fold
from spark_jobs.merge import MergePlan, key_ranges, merge_text, metadata_columns, quote
from spark_jobs.modes.target import Target

VIEW = "sluice_window"
_FLAGS = (DELETED, MATCH)


def lake_columns(schema: TableSchema, *, metadata: bool) -> list[tuple[str, str]]:
    """The columns of a mirror table, in order."""
    own = [(column.name, column.lake.sql) for column in schema.columns]
    return own + [(name, METADATA_TYPES[name]) for name in metadata_columns(schema, wanted=metadata)]


def apply_changes(target: Target, rows: pa.Table, *, version: int) -> None:
    """Commits the net effect of `rows` with the marker `version`."""
    commit_folded(target, fold(rows, target.schema), version=version)


def commit_folded(target: Target, folded: Folded, *, version: int) -> None:
    """Commits a folded window. One whose changes cancel out leaves nothing to commit: done again with later ones it is still nothing."""
    if not len(folded.rows) and not folded.replaces:
        return
    schema = target.schema
    columns = lake_columns(schema, metadata=target.metadata)
    refuse_unplaced(folded.rows, schema)
    if folded.append or folded.replaces:
        with target.handover.frame(folded.rows, columns) as frame:
            target.lake.write(target.app_id, version, frame=frame, mode="overwrite" if folded.replaces else "append")
        return
    with target.handover.frame(folded.rows, columns + _working_columns(folded, schema)) as frame:
        hint = functions.broadcast(frame) if len(folded.rows) <= target.broadcast_rows else frame
        hint.createOrReplaceTempView(VIEW)
        try:
            statement = merge_text(plan_for(folded, schema, metadata=target.metadata), target=target.lake.expression, source=quote(VIEW))
            target.lake.execute(target.app_id, version, statement=statement)
        finally:
            target.lake.session.catalog.dropTempView(VIEW)


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
        ranges=key_ranges(folded.rows, schema),
    )


def refuse_unplaced(rows: pa.Table, schema: TableSchema) -> None:
    """A marked value must have a column to be kept in."""
    if not any(column.lake.special for column in schema.columns) and rows[envelope.SPECIAL].null_count != len(rows):
        raise UnsupportedChange(f"{schema.qualified_name}: a value was marked although every column's type holds all values")


def _working_columns(folded: Folded, schema: TableSchema) -> list[tuple[str, str]]:
    working: list[tuple[str, str]] = []
    for position, column in enumerate(schema.key_columns):
        working.append((f"{KEY}{position}", column.lake.sql))
        if column.lake.special:
            working.append((f"{KEY_SPECIAL}{position}", "string"))
    working += [(name, "boolean") for name in (*_FLAGS, *(f"{KEEP}{column.attnum}" for column in folded.kept))]
    # Without metadata columns the order's columns are not handed over; everything the statement reads is.
    return working
