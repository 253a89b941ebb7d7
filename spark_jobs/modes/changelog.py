"""The lake table holds every change, appended in the form the segments have.

Owns that nothing a change says is lost: unsent values, old rows and marked values have their own columns where the table can have them. The only mode
for tables whose rows cannot be told apart.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from service.contract import columns as envelope
from service.contract.schema import TableSchema
from spark_jobs.evolution import METADATA_TYPES
from spark_jobs.fold import in_order
from spark_jobs.merge import spark_ddl
from spark_jobs.modes.target import Target


def metadata_names(schema: TableSchema) -> tuple[str, ...]:
    """The columns after the source's own. OLD is apart: its type follows the identity columns."""
    names = (envelope.OP, envelope.LSN, envelope.TS, envelope.ORDINAL, envelope.SPECIAL)
    return (*names, envelope.UNCHANGED, envelope.OLD_SPECIAL) if schema.identity_columns else names


def lake_columns(schema: TableSchema) -> list[tuple[str, str]]:
    """The columns of a changelog table, in order."""
    columns = [(column.name, column.lake.sql) for column in schema.columns] + [(name, METADATA_TYPES[name]) for name in metadata_names(schema)]
    if schema.identity_columns:
        fields = spark_ddl([(column.name, column.lake.sql) for column in schema.identity_columns]).replace("` ", "`: ")
        columns.append((envelope.OLD, f"struct<{fields}>"))
    return columns


def append_changes(target: Target, portions: Iterable[pa.Table], *, columns: Sequence[tuple[str, str]], version: int) -> None:
    """Commits every row of `portions` with the marker `version`. Also how a mirror takes rows that are all new."""
    with target.handover.pieces() as pieces:
        for rows in portions:
            pieces.add(in_order(rows).select([name for name, _ in columns]))
        target.lake.write(target.app_id, version, frame=pieces.frame(columns), mode="append")
