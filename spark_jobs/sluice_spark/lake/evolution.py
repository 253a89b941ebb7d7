"""From one schema version to the next in the lake: the SQL that adds columns, and what older rows
hold in them. What can be followed at all is decided by `sluice.contract.evolution`.

Repeating an evolution is harmless: it is the difference to the lake's present columns. (Delta:
Update table schema.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.lake.merge import binary_literal, literal, quote
from sluice_spark.read.column_defaults import missing_value

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


@dataclass(frozen=True, slots=True)
class Evolution:
    """`additions` are the texts inside ADD COLUMNS, `constants` the assignments that give older
    rows their values.
    """

    additions: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


def plan(
    added: Sequence[ColumnSchema],
    *,
    schema: TableSchema,
    metadata: Sequence[str],
    lake: Sequence[tuple[str, str]],
    with_constants: bool,
) -> Evolution:
    """What to do to a lake table with the columns `lake` so that it can take rows of `schema`.
    Raises UnsupportedChange.
    """
    present = dict(lake)
    wanted = {
        **{column.name: column.lake.sql for column in schema.columns},
        **{name: METADATA_TYPES[name] for name in metadata},
    }
    for name, kind in present.items():
        if not envelope.is_reserved(name) and wanted.get(name) != kind:
            raise UnsupportedChange(
                f"{schema.qualified_name}: the lake's column {name!r} of type {kind} is not the source's"
            )
    additions = []
    previous = ""
    for name, kind in wanted.items():
        if name not in present:
            place = f" AFTER {quote(previous)}" if previous else " FIRST"
            additions.append(f"{quote(name)} {kind}{place}")
        previous = name
    constants = _assignments(added) if with_constants else []
    return Evolution(tuple(additions), tuple(constants))


def _assignments(added: Sequence[ColumnSchema]) -> list[str]:
    assignments: list[str] = []
    marks: list[str] = []
    for column in added:
        if column.missing is None:
            continue
        value, text = missing_value(column)
        if text is None:
            assignments.append(f"{quote(column.name)} = {_sql(value.as_py(), column)}")
        else:
            marks += [literal(column.name), literal(text)]
    if marks:
        special = quote(envelope.SPECIAL)
        nothing = "CAST(map() AS MAP<STRING, STRING>)"
        assignments.append(f"{special} = map_concat(coalesce({special}, {nothing}), map({', '.join(marks)}))")
    return assignments


def _sql(value: Any, column: ColumnSchema) -> str:
    if isinstance(value, bytes):
        return binary_literal(value)
    if isinstance(value, list):
        return f"CAST(array() AS {column.lake.sql})"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return literal(text) if column.lake.sql == "string" else f"CAST({literal(text)} AS {column.lake.sql})"
