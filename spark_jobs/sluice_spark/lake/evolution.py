"""From one schema version to a later one in the lake: which columns the table has then, and what happens
to values of older rows. What can be followed at all is decided by `sluice.contract.evolution`.

Two commits, each with a marker of its own that says which schema version it leads to, so that a repeated
attempt goes on where the one before ended. The first changes metadata alone: a column keeps its field in
the data files under any name, a column that comes again gets a new one. The second is made only where
older rows need it: defaults of columns that came, names of marked values, types of which Delta has to
write the values anew.

Also owns that other columns identify the rows only where they tell them apart: before the commit that leads
to such a version every key of the table is looked at, and one that is there twice or has no value refuses
the step. (Delta: Update table schema; Delta protocol: Column Mapping.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sluice import faults
from sluice.contract import envelope
from sluice.contract.evolution import (
    Added,
    Dropped,
    Keyed,
    Renamed,
    Retyped,
    Step,
    drops_old_values,
    identified_alike,
    identified_since,
    steps,
)
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.plan import Columns
from sluice_spark.lake.rows_to_commit import struct
from sluice_spark.lake.sql import binary_literal, literal, quote
from sluice_spark.lake.table import LakeTable
from sluice_spark.read.column_defaults import missing_value

Field = Mapping[str, Any]
"""A column in Delta's own spelling."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A schema version, and the columns of its lake table."""

    schema: TableSchema
    columns: Columns

    @property
    def types(self) -> dict[str, str]:
        return dict(self.columns)


def reshaped(fields: Sequence[Field], *, old: Shape, new: Shape) -> list[Field]:
    """The columns of a lake table that has `fields` and the shape `old`, in the shape `new`. A column
    whose type changes keeps the one that it has. Raises UnsupportedChange.
    """
    present = {str(field["name"]): field for field in fields}
    own = {column.attnum: column.name for column in old.schema.columns}
    foreign = [name for name in present if name not in old.types and not envelope.is_reserved(name)]
    lost = [name for name in own.values() if name not in present]
    if foreign or lost:
        raise UnsupportedChange(f"{new.schema.qualified_name}: the lake's column {[*foreign, *lost][0]!r} is not ours")
    before = {column.name: present.get(own.get(column.attnum, "")) for column in new.schema.columns}
    made: list[Field] = []
    for name, kind in new.columns:
        field = before.get(name) if name in before else present.get(name)
        if field is None:
            field = struct([(name, kind)]).jsonValue()["fields"][0]
        elif name == envelope.OLD:
            field = _old_rows(field, old.schema, new.schema)
        made.append({**field, "name": name})
    if not made:
        raise UnsupportedChange(f"{new.schema.qualified_name}: no column of the lake table would be left")
    # Columns that the configuration asked for once.
    return made + [field for name, field in present.items() if name not in old.types and name not in new.types]


def _old_rows(field: Field, old: TableSchema, new: TableSchema) -> Field:
    """The structure of old rows in a changelog: the identity's columns."""
    present = {str(one["name"]): one for one in field["type"]["fields"]}
    own = {column.attnum: column.name for column in old.identity_columns}
    made = []
    for column in new.identity_columns:
        known = present.get(own.get(column.attnum, ""))
        made.append(
            {**known, "name": column.name}
            if known is not None
            else struct([(column.name, column.lake.sql)]).jsonValue()["fields"][0]
        )
    return {**field, "type": {**field["type"], "fields": made}}


@dataclass(frozen=True, slots=True)
class Values:
    """What the steps mean for values of older rows: `assignments` by column, for rows that meet
    `condition` (empty: all). `types` are the columns that get another type.
    """

    assignments: Mapping[str, str]
    condition: str
    types: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.assignments or self.types)


def values(found: Iterable[Step], new: Shape, *, with_defaults: bool) -> Values:
    """Of a lake table that has the columns of `new` already."""
    found = tuple(found)
    marks = {name: f"coalesce({quote(name)}, {_NO_MARKS})" for name in envelope.MARKS if name in new.types}
    names, gone = _renamed_marks(found)
    days = [step.before.name for step in found if isinstance(step, Retyped) and _is_day_with_time(step)]
    conditions = []
    assignments: dict[str, str] = {}
    if names or gone or days:
        for name in marks:
            assignments[name] = marks[name] = _moved(marks[name], names, gone, days)
            touched = ", ".join(literal(one) for one in (*names, *gone, *days))
            conditions.append(f"exists(map_keys({quote(name)}), name -> name IN ({touched}))")
    defaults = _defaults([step.column for step in found if isinstance(step, Added)]) if with_defaults else ({}, [])
    assignments |= defaults[0]
    if defaults[1]:
        assignments[envelope.SPECIAL] = f"map_concat({marks[envelope.SPECIAL]}, map({', '.join(defaults[1])}))"
    for name in assignments.keys() & set(envelope.MARKS):
        text = assignments[name]
        assignments[name] = f"CASE WHEN size({text}) = 0 THEN NULL ELSE {text} END"
    changed = {step.column.attnum for step in found if isinstance(step, Retyped) and _stored_otherwise(step)}
    types = {column.name: column.lake.sql for column in new.schema.columns if column.attnum in changed}
    if envelope.OLD in new.types and changed & {column.attnum for column in new.schema.identity_columns}:
        types[envelope.OLD] = new.types[envelope.OLD]
    return Values(assignments, "" if any(defaults) else " OR ".join(conditions), types)


_NO_MARKS = "CAST(map() AS MAP<STRING, STRING>)"


def _stored_otherwise(step: Retyped) -> bool:
    return step.before.lake.sql != step.column.lake.sql


def _renamed_marks(found: Iterable[Step]) -> tuple[dict[str, str], list[str]]:
    """Columns that can have marked values: new names by the old ones, and names of those that went."""
    names, gone = {}, []
    for step in found:
        if isinstance(step, Renamed) and step.column.lake.special:
            names[step.before] = step.column.name
        elif isinstance(step, Dropped) and step.column.lake.special:
            gone.append(step.column.name)
    return names, gone


def _is_day_with_time(step: Retyped) -> bool:
    """Whether marked values of the column are written otherwise now."""
    return (step.before.lake.family, step.column.lake.family) == ("date", "timestamp")


_NEVER = "entry.value LIKE '%infinity'"
_WITH_TIME = (
    "concat(replace(entry.value, ' BC', ''), ' 00:00:00', CASE WHEN entry.value LIKE '% BC' THEN ' BC' ELSE '' END)"
)


def _moved(marks: str, names: Mapping[str, str], gone: Sequence[str], days: Sequence[str]) -> str:
    """`names` and `days` are by the names before."""
    entries = f"map_entries({marks})"
    if days:
        value = f"CASE WHEN NOT entry.key IN ({', '.join(map(literal, days))}) OR {_NEVER} THEN entry.value"
        entries = (
            f"transform({entries}, entry -> named_struct('key', entry.key, 'value', {value} ELSE {_WITH_TIME} END))"
        )
    if gone:
        entries = f"filter({entries}, entry -> NOT entry.key IN ({', '.join(map(literal, gone))}))"
    if names:
        cases = " ".join(f"WHEN {literal(old)} THEN {literal(new)}" for old, new in names.items())
        entries = f"transform({entries}, entry -> struct(CASE entry.key {cases} ELSE entry.key END, entry.value))"
    return f"map_from_entries({entries})"


def _defaults(added: Sequence[ColumnSchema]) -> tuple[dict[str, str], list[str]]:
    """What rows hold that are older than the columns: values, and marks in turns with their texts."""
    assignments: dict[str, str] = {}
    marks: list[str] = []
    for column in added:
        if column.missing is None:
            continue
        value, text = missing_value(column)
        if text is None:
            assignments[column.name] = _sql(value.as_py(), column.lake.sql)
        else:
            marks += [literal(column.name), literal(text)]
    return assignments, marks


def _sql(value: Any, kind: str) -> str:
    """`value` as one of the lake type `kind`."""
    if isinstance(value, bytes):
        return binary_literal(value)
    if isinstance(value, list):
        element = kind.removeprefix("array<").removesuffix(">")
        return f"CAST(array({', '.join(_sql(item, element) for item in value)}) AS {kind})"
    if value is None:
        return f"CAST(NULL AS {kind})"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return literal(text) if kind == "string" else f"CAST({literal(text)} AS {kind})"


def evolve(lake: LakeTable, shapes: Mapping[int, Shape], number: int, *, since: int, is_changelog: bool) -> int:
    """Brings `lake`, which began with schema version `since`, to version `number` if it is not past
    it. Where it stands then. Raises UnsupportedChange.

    Rows of a mirror that are older than a column get its default. A changelog keeps changes as they
    were sent: what a column means for older rows is no change.
    """
    columns_id, values_id = f"{lake.app_id}/schema", f"{lake.app_id}/values"
    stands, valued = max(lake.marker(columns_id) or 0, since), max(lake.marker(values_id) or 0, since)
    target = max(stands, number)
    for stop in _stops(shapes, valued, stands, target):
        todo = _steps(shapes, valued, stop)
        wanted = values(todo, shapes[stop], with_defaults=not is_changelog)
        if stands < stop:
            _require_same_rows(lake, shapes[stands], shapes[stop], is_changelog=is_changelog)
            markers = {columns_id: stop} | ({} if wanted else {values_id: stop})
            lake.change_columns(markers, partial(reshaped, old=shapes[stands], new=shapes[stop]))
            faults.point("apply.schema.altered")
        if wanted:
            _commit_values(lake, values_id, stop, wanted)
        stands = valued = stop
    return target


def identity(schemas: Mapping[int, TableSchema], numbers: Iterable[int]) -> int:
    """From which schema version on rows are identified as those of the versions `numbers` are. Raises
    UnsupportedChange when they lie on both sides of a change.
    """
    found = {identified_since(schemas, number) for number in numbers}
    if len(found) > 1:
        raise UnsupportedChange(
            "one entry has changes from before and from behind a change of the key, and cannot be applied",
            hint="resync the table",
        )
    return found.pop()


def _stops(shapes: Mapping[int, Shape], valued: int, stands: int, target: int) -> list[int]:
    """The versions to come to, one after the other: none lies between what identifies rows before and after
    a step.
    """
    stops = {stands, target}
    for number in range(valued + 1, target + 1):
        if not identified_alike(shapes[number - 1].schema, shapes[number].schema):
            stops |= {number - 1, number}
    return sorted(stop for stop in stops if stop > valued)


def _require_same_rows(lake: LakeTable, old: Shape, new: Shape, *, is_changelog: bool) -> None:
    """Raises UnsupportedChange when rows that `new` identifies by other columns cannot be followed."""
    name, since = new.schema.qualified_name, f"since schema version {new.schema.version}"
    what = ""
    if is_changelog:
        if drops_old_values(old.schema, new.schema):
            what = f"old rows of {name} are sent with fewer columns {since}, which its changelog would lose"
    else:
        key = next((step for step in steps(old.schema, new.schema) if isinstance(step, Keyed)), None)
        if key is not None and key.columns and not _has_own_keys(lake, old, key):
            what = f"{name} has another key {since}, and rows of the lake table share a value of it"
    if what:
        raise UnsupportedChange(what, hint="resync the table")


def _has_own_keys(lake: LakeTable, shape: Shape, key: Keyed) -> bool:
    """Whether each row of a lake table that has the shape has a key that no other one has."""
    names = {column.attnum: column.name for column in shape.schema.columns}
    terms: list[str] = []
    absent: list[str] = []
    for column in key.columns:
        name = names[column.attnum]
        texts = [quote(name)]
        if envelope.SPECIAL in shape.types:
            texts.append(f"element_at({quote(envelope.SPECIAL)}, {literal(name)})")
        terms += texts
        absent.append("(" + " AND ".join(f"{text} IS NULL" for text in texts) + ")")
    text = (
        f"SELECT 1 FROM {lake.expression} GROUP BY {', '.join(terms)} "
        f"HAVING count(*) > 1 OR {' OR '.join(absent)} LIMIT 1"
    )
    with translated_errors():
        return not lake.session.sql(text).take(1)


def _steps(shapes: Mapping[int, Shape], old: int, new: int) -> tuple[Step, ...]:
    return steps(shapes[old].schema, shapes[new].schema) if old < new else ()


def _commit_values(lake: LakeTable, app_id: str, version: int, wanted: Values) -> None:
    if wanted.types:
        chosen = ", ".join(_selected(name, kind, wanted) for name, kind in lake.columns())
        lake.write(
            app_id,
            version,
            frame=lake.session.sql(f"SELECT {chosen} FROM {lake.expression}"),
            mode="overwrite",
            new_schema=True,
        )
        return
    where = f" WHERE {wanted.condition}" if wanted.condition else ""
    if not lake.session.sql(f"SELECT 1 FROM {lake.expression}{where} LIMIT 1").take(1):
        # Delta commits no UPDATE of nothing, and with it no marker.
        lake.change_columns({app_id: version}, list)
        return
    assignments = ", ".join(f"{quote(name)} = {text}" for name, text in wanted.assignments.items())
    lake.execute(app_id, version, statement=f"UPDATE {lake.expression} SET {assignments}{where}")


def _selected(name: str, kind: str, wanted: Values) -> str:
    text = wanted.assignments.get(name, quote(name))
    return f"CAST({text} AS {wanted.types.get(name, kind)}) AS {quote(name)}"
