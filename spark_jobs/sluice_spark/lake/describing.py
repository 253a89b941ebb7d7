"""What a lake table says of itself: the comments, keys, labels and types of the source, and the column rules.

Owns that no row depends on it, that what changes of it is committed without rows, and that a comment which somebody
else gave to the lake table stays where the source has none. Pure: JSON in, JSON out. (Delta protocol: Change
Metadata, Schema Serialization Format.)
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.contract.description import Description, ForeignKey
from sluice.contract.schema import ColumnSchema, TableSchema

Field = Mapping[str, Any]
TABLE, PRIMARY_KEY, FOREIGN_KEYS = "sluice.table", "sluice.primaryKey", "sluice.foreignKeys"
EXCLUDED = "sluice.excludedColumns"
TYPE, LABELS, RULE = "sluice.type", "sluice.labels", "sluice.rule"
COMMENTED = "sluice.commented"
"""Says of a table, or of a column, that its comment is the source's."""
COMMENT = "comment"
"""Of a column, where Spark, Delta and others look for it."""
LONGEST = 8000
"""Characters of a property. Of a longer list the last ones are left out."""
_OF_TABLES, _OF_COLUMNS = (TABLE, PRIMARY_KEY, FOREIGN_KEYS, EXCLUDED, COMMENTED), (TYPE, LABELS, RULE, COMMENTED)


@dataclass(frozen=True, slots=True)
class Words:
    """What is said: of a table in the version `schema`, by the catalog. The comment of the table is left alone where
    the configuration `has_comment`.
    """

    description: Description
    schema: TableSchema
    has_comment: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """The comment and the properties of a Delta table."""

    comment: str
    properties: Mapping[str, str]


def worded(fields: Sequence[Field], said: Said, what: Words) -> tuple[list[Field], Said]:
    """The columns of a Delta table with `fields`, and what it says of itself, once it says `what` too."""
    columns = {column.name: column for column in what.schema.columns}
    made: list[Field] = [
        {**field, "metadata": _metadata(field, columns.get(field["name"]), what.description)} for field in fields
    ]
    properties = {name: value for name, value in said.properties.items() if name not in _OF_TABLES}
    properties |= _properties(what, {field["name"] for field in fields})
    ours = COMMENTED in said.properties
    comment = "" if ours else said.comment
    if what.description.comment and not what.has_comment:
        comment, properties[COMMENTED] = what.description.comment, "true"
    return made, Said(said.comment if what.has_comment else comment, properties)


def first_words(fields: Sequence[Field], properties: Mapping[str, str], what: Words | None) -> tuple[list[Field], Said]:
    """The columns and what a new Delta table with `properties` says of itself. It says `what` from its first version
    on: each later change of that costs the next window a job in which Delta collects the files of the table.
    """
    said = Said("", properties)
    return (list(fields), said) if what is None else worded(fields, said, what)


def _metadata(field: Field, column: ColumnSchema | None, description: Description) -> dict[str, Any]:
    before = field["metadata"]
    kept = {name: value for name, value in before.items() if name not in _OF_COLUMNS}
    if COMMENTED in before:
        kept.pop(COMMENT, None)
    if column is None:
        return kept
    kept[TYPE] = column.type_name
    rule = column.rule.text if column.rule is not None else ""
    if rule:
        kept[RULE] = rule
    elif labels := description.labels.get(column.attnum):
        kept[LABELS] = _listed(labels)
    comment = "\n".join(filter(None, (description.comments.get(column.attnum), rule and f"Column rule: {rule}")))
    if comment:
        kept |= {COMMENT: comment, COMMENTED: "true"}
    return kept


def _properties(what: Words, present: set[str]) -> dict[str, str]:
    names = {column.attnum: column.name for column in what.schema.columns if column.name in present}
    keyed = tuple(column.attnum for column in what.schema.key_columns)
    key = what.description.primary_key if what.description.primary_key is not None else keyed
    lists: dict[str, list[Any]] = {
        PRIMARY_KEY: [names[attnum] for attnum in key] if names.keys() >= set(key) else [],
        FOREIGN_KEYS: [_foreign(one, names) for one in what.description.foreign_keys if names.keys() >= {*one.columns}],
        EXCLUDED: [one.column.name for one in what.schema.excluded],
    }
    return {TABLE: what.schema.qualified_name, **{name: _listed(items) for name, items in lists.items() if items}}


def _foreign(key: ForeignKey, names: Mapping[int, str]) -> dict[str, Any]:
    columns = [names[attnum] for attnum in key.columns]
    return {"name": key.name, "columns": columns, "table": key.table, "references": list(key.references)}


def _listed(items: Iterable[Any]) -> str:
    """As JSON."""
    taken: list[str] = []
    size = 2
    for item in items:
        text = json.dumps(item, ensure_ascii=False)
        size += len(text) + 2
        if size > LONGEST:
            break
        taken.append(text)
    return f"[{', '.join(taken)}]"
