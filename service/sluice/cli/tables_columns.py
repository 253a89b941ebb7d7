"""`tables --columns`: each column of each table, and what is done to it before anything is stored."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sluice.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sluice.contract.schema import ColumnSchema
    from sluice.manifest.values import PipelineState


@dataclass(frozen=True, slots=True)
class Column:
    """`lake_type` is empty for a column that the lake does not have. `rule` is empty for one that is carried as it
    is; `listed_as` is the name by which the configuration has the rule, empty where it is that of new columns.
    """

    name: str
    type: str
    lake_type: str
    key: bool
    rule: str
    listed_as: str


def listed(manifest: "PipelineState", states: Collection[str]) -> Iterator[tuple[str, list[Column]]]:
    """Every table in one of `states` (none: in any) by its name, with its columns in their order."""
    tables = [one for one in manifest.tables.values() if one.schemas and (not states or one.state in states)]
    for state in sorted(tables, key=lambda one: (one.schema_name, one.table_name)):
        schema = state.schemas[max(state.schemas)]
        absent = {one.attnum for one in schema.ignored_columns} | {one.column.attnum for one in schema.excluded}
        columns = [_column(one, is_absent=one.attnum in absent) for one in schema.sent if not one.transient]
        yield f"{state.schema_name}.{state.table_name}", columns


def _column(column: "ColumnSchema", *, is_absent: bool) -> Column:
    rule = column.rule.text if column.rule is not None else "left out by contract" if column.ignored else ""
    listed_as = column.rule.listed_as if column.rule is not None else ""
    return Column(
        column.name, column.type_name, "" if is_absent else column.lake.sql, column.key, rule=rule, listed_as=listed_as
    )


def to_json(manifest: "PipelineState", states: Collection[str]) -> dict[str, Any]:
    tables = [{"table": name, "columns": list(map(asdict, columns))} for name, columns in listed(manifest, states)]
    return {"schema_version": 1, "tables": tables}


def table(manifest: "PipelineState", states: Collection[str]) -> "RenderableType":
    rows = [
        (name, one.name + (" (key)" if one.key else ""), one.type, one.lake_type or "-", _rule(one))
        for name, columns in listed(manifest, states)
        for one in columns
    ]
    return output.table("", ("table", "column", "type", "in the lake", "rule"), rows)


def _rule(column: Column) -> str:
    said = column.rule
    if said and column.lake_type == "" and not column.listed_as:
        return f"{said} (added later)"
    return f"{said} (of {column.listed_as})" if column.listed_as not in ("", column.name) else said
