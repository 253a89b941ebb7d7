"""The columns of lake tables that carry metadata: their Spark types. Pure."""

from sluice.contract import envelope
from sluice.contract.schema import TableSchema

METADATA_TYPES = {
    envelope.OP: "string",
    envelope.LSN: "bigint",
    envelope.TS: "timestamp",
    envelope.ORDINAL: "bigint",
    envelope.XID: "bigint",
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
