"""From one schema version to the next in the lake: the SQL that adds columns, and what older rows
hold in them. What can be followed at all is decided by `sluice.contract.evolution`.

Repeating an evolution is harmless: it is the difference to the lake's present columns. (Delta:
Update table schema.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice import faults
from sluice.contract import envelope
from sluice.contract.evolution import added_columns
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.lake.columns import METADATA_TYPES
from sluice_spark.lake.sql import binary_literal, literal, quote
from sluice_spark.lake.table import LakeTable
from sluice_spark.read.column_defaults import missing_value


@dataclass(frozen=True, slots=True)
class Evolution:
    """`additions` are the texts inside ADD COLUMNS, `defaults` the assignments that give older
    rows their values.
    """

    additions: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()


def plan(
    added: Sequence[ColumnSchema],
    *,
    schema: TableSchema,
    metadata: Sequence[str],
    lake: Sequence[tuple[str, str]],
    with_defaults: bool,
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
    defaults = _assignments(added) if with_defaults else []
    return Evolution(tuple(additions), tuple(defaults))


def evolve(
    lake: LakeTable,
    versions: Mapping[int, TableSchema],
    schema: TableSchema,
    *,
    since: int,
    metadata: Sequence[str],
    is_changelog: bool,
) -> None:
    """Brings `lake`, which began with schema version `since`, to `schema`. Raises
    UnsupportedChange.

    Rows of a mirror that are older than a column get its default. A changelog keeps changes as they
    were sent: what a column means for older rows is no change.
    """
    app_id = f"{lake.app_id}/schema"
    added = added_columns(versions, since=since, until=schema.version)
    columns = lake.columns()
    done = lake.marker(app_id) or since
    fresh = added_columns(versions, since=done, until=schema.version) if done < schema.version else ()
    steps = plan(fresh, schema=schema, metadata=metadata, lake=columns, with_defaults=not is_changelog)
    if is_changelog and any(column.identity for column in added):
        raise UnsupportedChange(f"{schema.qualified_name}: the old rows of a changelog gained a column")
    if steps.additions:
        lake.alter(f"ALTER TABLE {lake.expression} ADD COLUMNS ({', '.join(steps.additions)})")
    faults.point("apply.schema.altered")
    if steps.defaults:
        lake.execute(app_id, schema.version, statement=f"UPDATE {lake.expression} SET {', '.join(steps.defaults)}")


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
