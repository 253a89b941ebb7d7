"""The lake table holds every change, appended in the form the segments have.

Owns that nothing a change says is lost: unsent values, old rows and marked values have their own
columns where the table can have them. The only mode for tables whose rows cannot be told apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import in_order
from sluice_spark.lake.evolution import METADATA_TYPES
from sluice_spark.lake.merge import quote
from sluice_spark.modes.target import Target
from sluice_spark.read.column_defaults import arrow_type


def metadata_names(schema: TableSchema) -> tuple[str, ...]:
    """The columns after the source's own. OLD is apart: its type follows the identity columns."""
    names = (
        envelope.OP,
        envelope.LSN,
        envelope.TS,
        envelope.ORDINAL,
        envelope.ORIGIN,
        envelope.ORIGIN_LSN,
        envelope.SPECIAL,
    )
    return (*names, envelope.UNCHANGED, envelope.OLD_SPECIAL) if schema.identity_columns else names


def lake_columns(schema: TableSchema) -> list[tuple[str, str]]:
    """The columns of a changelog table, in order."""
    columns = [(column.name, column.lake.sql) for column in schema.columns] + [
        (name, METADATA_TYPES[name]) for name in metadata_names(schema)
    ]
    if schema.identity_columns:
        fields = ", ".join(f"{quote(column.name)}: {column.lake.sql}" for column in schema.identity_columns)
        columns.append((envelope.OLD, f"struct<{fields}>"))
    return columns


def with_origins(rows: pa.Table, origins: Mapping[int, tuple[str, int]]) -> pa.Table:
    """`rows` with where their transactions came from; `origins` is by commit end LSN, and what is
    not in it began at the source.
    """
    known = pc.index_in(rows[envelope.LSN], value_set=pa.array(list(origins), pa.int64()))
    names = pa.array([name for name, _ in origins.values()], pa.string())
    positions = pa.array(
        [Decimal(position) if position else None for _, position in origins.values()],
        arrow_type(METADATA_TYPES[envelope.ORIGIN_LSN]),
    )
    return rows.append_column(envelope.ORIGIN, names.take(known)).append_column(
        envelope.ORIGIN_LSN, positions.take(known)
    )


def append_changes(
    target: Target, portions: Iterable[pa.Table], *, columns: Sequence[tuple[str, str]], version: int
) -> None:
    """Commits every row of `portions` with the marker `version`. Also how a mirror takes rows that
    are all new.
    """
    with target.handover.pieces() as pieces:
        for rows in portions:
            pieces.add(in_order(rows).select([name for name, _ in columns]))
        target.lake.write(target.app_id, version, frame=pieces.frame(columns), mode="append")
