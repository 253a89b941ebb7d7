"""From one schema version to the next in the lake: which columns are added, and what older rows
hold in them.

Owns: only additions are followed; any other difference makes the table stale by name, because rows
already in the lake would no longer mean what the source means. Repeating an evolution is harmless:
it is the difference to the lake's present columns. (Delta: Update table schema.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sluice import faults
from sluice.contract import envelope
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


def added_columns(versions: Mapping[int, TableSchema], *, since: int, until: int) -> tuple[ColumnSchema, ...]:
    """The columns that versions `since`+1 to `until` add. Raises UnsupportedChange when they do
    anything else.
    """
    added: list[ColumnSchema] = []
    for before, after in pairwise([versions[number] for number in sorted(versions) if since <= number <= until]):
        added += _added(before, after)
    return tuple(added)


def refuse_alike(schema: TableSchema) -> None:
    """Delta does not tell names apart by case."""
    if len({envelope.folded(column.name) for column in schema.columns}) != len(schema.columns):
        raise UnsupportedChange(
            f"{schema.qualified_name}: two columns differ by case only, which Delta does not support"
        )


def _added(before: TableSchema, after: TableSchema) -> list[ColumnSchema]:
    where = f"{after.qualified_name} in schema version {after.version}"
    refuse_alike(after)
    old = {column.attnum: column for column in before.columns}
    new = {column.attnum: column for column in after.columns}
    if len(new) != len(after.columns) or len(old) != len(before.columns):
        raise UnsupportedChange(f"{where}: the source no longer had its columns, so they cannot be matched")
    for attnum, column in old.items():
        now = new.get(attnum)
        if now is None:
            raise UnsupportedChange(f"{where}: column {column.name!r} was dropped")
        if now.name != column.name:
            raise UnsupportedChange(f"{where}: column {column.name!r} was renamed to {now.name!r}")
        if now.lake.sql != column.lake.sql:
            raise UnsupportedChange(
                f"{where}: column {column.name!r} changed from {column.type_name} to {now.type_name}"
            )
        if now.key != column.key:
            raise UnsupportedChange(f"{where}: the key changed at column {column.name!r}")
    if (before.replica_identity == "f") != (after.replica_identity == "f") and not after.key_columns:
        raise UnsupportedChange(f"{where}: the replica identity of a table without a key changed")
    fresh = [column for attnum, column in new.items() if attnum not in old]
    if any(column.key for column in fresh):
        raise UnsupportedChange(f"{where}: the key gained a column")
    return fresh


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
