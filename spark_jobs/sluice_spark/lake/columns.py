"""The columns of a lake table: the source's own, then those that carry metadata.

Owns the names, the order and the Spark types of both. Pure.
"""

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.lake.sql import quote

METADATA_TYPES = {
    envelope.OP: "string",
    envelope.LSN: "bigint",
    envelope.TS: "timestamp",
    envelope.ORDINAL: "bigint",
    envelope.UNCHANGED: "array<smallint>",
    envelope.SPECIAL: "map<string,string>",
    envelope.OLD_SPECIAL: "map<string,string>",
    envelope.ORIGIN: "string",
    envelope.ORIGIN_LSN: "decimal(20,0)",
}


def mirror_metadata(schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
    """The columns that a mirror table has after the source's own."""
    special = (envelope.SPECIAL,) if any(column.lake.special for column in schema.columns) else ()
    return ((envelope.LSN, envelope.TS) if wanted else ()) + special


def mirror_columns(schema: TableSchema, *, metadata: bool) -> list[tuple[str, str]]:
    """The columns of a mirror table, in order."""
    own = [(column.name, column.lake.sql) for column in schema.columns]
    return own + [(name, METADATA_TYPES[name]) for name in mirror_metadata(schema, wanted=metadata)]


def changelog_metadata(schema: TableSchema) -> tuple[str, ...]:
    """The columns that a changelog has after the source's own. OLD is not among them: its type follows
    the identity columns."""
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


def changelog_columns(schema: TableSchema) -> list[tuple[str, str]]:
    """The columns of a changelog table, in order."""
    columns = [(column.name, column.lake.sql) for column in schema.columns] + [
        (name, METADATA_TYPES[name]) for name in changelog_metadata(schema)
    ]
    if schema.identity_columns:
        fields = ", ".join(f"{quote(column.name)}: {column.lake.sql}" for column in schema.identity_columns)
        columns.append((envelope.OLD, f"struct<{fields}>"))
    return columns
