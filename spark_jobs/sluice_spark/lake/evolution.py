"""From one schema version to a later one in the lake: which columns the table has then, and what happens
to values of older rows. What can be followed at all is decided by `sluice.contract.evolution`.

Owns that each step is one commit, with a marker that says which schema version it leads to: no version of
the table has the columns of one schema version and the values of another. Where no older row needs it, the
commit changes metadata alone: a column keeps its field in the data files under any name, a column that comes
again gets a new one (without column mapping such a step writes the table anew). Otherwise it writes the table
anew: defaults of columns that came, names of marked values, types of which Delta has to write the values anew.
Plain defaults need no job of Spark: the files of a table that is not large are written anew as its windows
are, and rows keep their ids.

Also owns that other columns identify the rows only where they tell them apart: before the commit that leads
to such a version every key of the table is looked at, and one that is there twice or has no value refuses
the step. (Delta: Update table schema; Delta protocol: Column Mapping.)
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

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
from sluice_spark.lake.arranging import uncluster
from sluice_spark.lake.examined_version import schema_app_id
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.layout import Field
from sluice_spark.lake.plan import Columns
from sluice_spark.lake.rows_to_commit import struct
from sluice_spark.lake.sql import binary_literal, literal, quote
from sluice_spark.lake.table import LakeTable
from sluice_spark.read.column_defaults import missing_value


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
    own = _require_ours(present, old, new)
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


def _require_ours(present: Iterable[str], old: Shape, new: Shape) -> dict[int, str]:
    """The names of the columns that a lake table with the columns `present` has from the source, by attnum."""
    names, own = set(present), {column.attnum: column.name for column in old.schema.columns}
    foreign = [name for name in names if name not in old.types and not envelope.is_reserved(name)]
    lost = [name for name in own.values() if name not in names]
    if foreign or lost:
        raise UnsupportedChange(f"{new.schema.qualified_name}: the lake's column {[*foreign, *lost][0]!r} is not ours")
    return own


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
    """What a step means for values of older rows, in the columns from before it: `expressions` by the column
    afterwards, of those that are not what they were. They matter where rows meet `condition` (empty: everywhere).
    `types` says that a type changes. `constants` are there if all that is not what it was is the value of a new column.
    """

    expressions: Mapping[str, str]
    condition: str
    types: bool
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.expressions)


def values(found: Iterable[Step], old: Shape, new: Shape, *, with_defaults: bool) -> Values:
    """Of a lake table that has the columns of `old`."""
    found = tuple(found)
    marks = {
        name: f"coalesce({quote(name)}, {_NO_MARKS})" if name in old.types else _NO_MARKS
        for name in envelope.MARKS
        if name in new.types
    }
    names, gone = _renamed_marks(found)
    days = [step.before.name for step in found if isinstance(step, Retyped) and _is_day_with_time(step)]
    conditions = []
    made: dict[str, str] = {}
    if names or gone or days:
        for name in marks.keys() & old.types.keys():
            made[name] = marks[name] = _moved(marks[name], names, gone, days)
            touched = ", ".join(literal(one) for one in (*names, *gone, *days))
            conditions.append(f"exists(map_keys({quote(name)}), name -> name IN ({touched}))")
    defaults = _defaults([step.column for step in found if isinstance(step, Added)]) if with_defaults else ({}, [])
    if defaults[1]:
        made[envelope.SPECIAL] = f"map_concat({marks[envelope.SPECIAL]}, map({', '.join(defaults[1])}))"
    for name, text in made.items():
        made[name] = f"CASE WHEN size({text}) = 0 THEN NULL ELSE {text} END"
    made |= defaults[0]
    types = [step for step in found if isinstance(step, Retyped) and _stored_otherwise(step)]
    made |= {step.column.name: quote(step.before.name) for step in types}
    everywhere = bool(types) or any(defaults)
    constants = _constants(found) if with_defaults and made.keys() == defaults[0].keys() else {}
    return Values(made, "" if everywhere else " OR ".join(conditions), bool(types), constants)


def _constants(found: Iterable[Step]) -> dict[str, pa.Scalar]:
    columns = [step.column for step in found if isinstance(step, Added) and step.column.missing is not None]
    return {column.name: missing_value(column)[0] for column in columns}


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


def columns_sha256(schema: TableSchema) -> str:
    """Tells the columns of one version from those of another one that has its number in another manifest."""
    columns = [
        (column.attnum, column.name, column.type_oid, column.typmod, column.missing) for column in schema.columns
    ]
    return hashlib.sha256(json.dumps(columns, default=str).encode()).hexdigest()


def evolve(
    lake: LakeTable, shapes: Mapping[int, Shape], number: int, *, since: int, keeps_changes: bool, current: str = ""
) -> int:
    """Brings `lake`, which began with schema version `since`, to version `number` if it is not past
    it. Where it stands then. Raises UnsupportedChange.

    Rows that are older than a column get its default, unless the table `keeps_changes` as they were sent: what a
    column means for older rows is no change. Rows are kept apart by their key where the boolean column `current` is
    true (empty: all are).
    """
    app_id = schema_app_id(lake.app_id)
    stands = max(lake.marker(app_id) or 0, since)
    target = max(stands, number)
    if target not in shapes:
        raise UnsupportedChange(
            f"the lake table has columns of schema version {target}, which the manifest does not have: an older copy "
            "of the spool was restored"
        )
    for stop in _stops(shapes, stands, target):
        old, new = shapes[stands], shapes[stop]
        lake.columns_sha256 = columns_sha256(new.schema)
        lake.require_names(new.types)
        _require_same_rows(lake, old, new, keeps_changes=keeps_changes, current=current)
        found = steps(old.schema, new.schema)
        if any(isinstance(step, Dropped) for step in found):
            gone = {step.column.name for step in found if isinstance(step, Dropped)}
            uncluster(lake, old.types.keys() - gone)
        wanted = values(found, old, new, with_defaults=not keeps_changes)
        change = partial(reshaped, old=old, new=new)
        moves = _moves(lake, found, old, new)
        if not moves and wanted.constants and lake.fill_columns((app_id, stop), change, wanted.constants):
            pass
        elif moves or wanted.types or (wanted and _any_row(lake, wanted.condition)):
            text = f"SELECT {selection(lake.columns(), wanted, old, new)} FROM {lake.expression}"
            lake.write(app_id, stop, frame=lake.session.sql(text), mode="overwrite", new_schema=True)
        else:
            lake.change_columns({app_id: stop}, change)
        faults.point("apply.schema.altered")
        stands = stop
    return target


def _moves(lake: LakeTable, found: Iterable[Step], old: Shape, new: Shape) -> bool:
    """Whether a column comes to another name, or leaves one that may come again, in a table whose data files have the
    names of columns: readers would find other values there.
    """
    if not any(isinstance(step, Renamed | Dropped) for step in found) and not _drops_fields(old, new):
        return False
    return not lake.is_mapped()


def _drops_fields(old: Shape, new: Shape) -> bool:
    """Whether the structure of old rows in a changelog loses one."""
    now = {column.name for column in new.schema.identity_columns}
    return envelope.OLD in old.types and not {column.name for column in old.schema.identity_columns} <= now


def _any_row(lake: LakeTable, condition: str) -> bool:
    where = f" WHERE {condition}" if condition else ""
    with translated_errors():
        return bool(lake.session.sql(f"SELECT 1 FROM {lake.expression}{where} LIMIT 1").take(1))


def selection(present: Sequence[tuple[str, str]], wanted: Values, old: Shape, new: Shape) -> str:
    """What is selected from a lake table that has the columns `present` and the shape `old`, for the shape `new`.
    Raises UnsupportedChange.
    """
    names = dict(present)
    own = _require_ours(names, old, new)
    before = {column.name: own.get(column.attnum, "") for column in new.schema.columns}
    chosen = []
    for name, kind in new.columns:
        source = before.get(name, name)
        text = wanted.expressions.get(name) or (quote(source) if source in names else "NULL")
        if name == envelope.OLD and name in names:
            text = _old_values(old.schema, new.schema)
        chosen.append(f"CAST({text} AS {kind}) AS {quote(name)}")
    # Columns that the configuration asked for once.
    chosen += [quote(name) for name in names if name not in old.types and name not in new.types]
    return ", ".join(chosen)


def _old_values(old: TableSchema, new: TableSchema) -> str:
    """The structure of old rows in a changelog, under the names afterwards."""
    own = {column.attnum: column.name for column in old.identity_columns}
    fields = []
    for column in new.identity_columns:
        known = own.get(column.attnum)
        text = f"{quote(envelope.OLD)}.{quote(known)}" if known is not None else "NULL"
        fields.append(f"{literal(column.name)}, CAST({text} AS {column.lake.sql})")
    return f"CASE WHEN {quote(envelope.OLD)} IS NOT NULL THEN named_struct({', '.join(fields)}) END"


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


def _stops(shapes: Mapping[int, Shape], stands: int, target: int) -> list[int]:
    """The versions to come to, one after the other: none lies between what identifies rows before and after
    a step.
    """
    stops = {target}
    for number in range(stands + 1, target + 1):
        if not identified_alike(shapes[number - 1].schema, shapes[number].schema):
            stops |= {number - 1, number}
    return sorted(stop for stop in stops if stop > stands)


def _require_same_rows(lake: LakeTable, old: Shape, new: Shape, *, keeps_changes: bool, current: str) -> None:
    """Raises UnsupportedChange when rows that `new` identifies by other columns cannot be followed."""
    name, since = new.schema.qualified_name, f"since schema version {new.schema.version}"
    what = ""
    if keeps_changes:
        if drops_old_values(old.schema, new.schema):
            what = f"old rows of {name} are sent with fewer columns {since}, which its changelog would lose"
    else:
        key = next((step for step in steps(old.schema, new.schema) if isinstance(step, Keyed)), None)
        if key is not None and key.columns and not _has_own_keys(lake, old, key, current):
            what = f"{name} has another key {since}, and rows of the lake table share a value of it"
    if what:
        raise UnsupportedChange(what, hint="resync the table")


def _has_own_keys(lake: LakeTable, shape: Shape, key: Keyed, current: str) -> bool:
    """Whether each row of a lake table that has the shape has a key that no other one has; where the boolean column
    `current` is true, if there is one.
    """
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
        f"SELECT 1 FROM {lake.expression}{f' WHERE {quote(current)}' if current else ''} GROUP BY {', '.join(terms)} "
        f"HAVING count(*) > 1 OR {' OR '.join(absent)} LIMIT 1"
    )
    with translated_errors():
        return not lake.session.sql(text).take(1)
