"""The columns of a Delta table as catalogs list them. Pure.

A catalog's list of columns is for people and for search: whoever reads a Delta table takes its columns from its log.
So a type that a catalog does not have is listed as a string there. (Delta protocol: Schema Serialization Format.)
"""

import json
from dataclasses import dataclass
from typing import Any

from sluice.printable import one_line

LONGEST_COMMENT = 255
"""Bytes. Glue and the tables of a Hive metastore take no more."""
_HIVE = {
    "string": "string",
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
}
_SPARK = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_UNITY = {"long": "LONG", "integer": "INT"}


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is the type as the log of the table spells it."""

    name: str
    kind: Any
    comment: str = ""
    nullable: bool = True

    @property
    def hive_type(self) -> str:
        return hive_type(self.kind)


def columns_of(schema: str) -> tuple[Column, ...]:
    """Those of a table with this schema, as the log has it. Raises ValueError."""
    try:
        return tuple(
            Column(
                str(field["name"]),
                field["type"],
                _comment(str(field.get("metadata", {}).get("comment", ""))),
                bool(field.get("nullable", True)),
            )
            for field in json.loads(schema)["fields"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the columns of the lake table cannot be understood") from error


def _comment(text: str) -> str:
    """In one line: Glue takes no other."""
    line = one_line(" ".join(text.split()))
    return line.encode()[:LONGEST_COMMENT].decode(errors="ignore")


def hive_type(kind: Any) -> str:
    """As Hive and Glue spell it."""
    return _text(kind, _HIVE, unknown="string")


def spark_type(kind: Any) -> str:
    """As Spark's SQL spells it."""
    return _text(kind, _SPARK, unknown="")


def unity_type(kind: Any) -> str:
    """The name of a type in Unity Catalog, without what it is made of."""
    if isinstance(kind, dict):
        return str(kind["type"]).upper()
    return _UNITY.get(kind, str(kind).partition("(")[0].upper())


def _text(kind: Any, names: dict[str, str], *, unknown: str) -> str:
    """`unknown` stands for a simple type without a name; empty: its own spelling does."""
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return kind
        return names.get(kind, unknown or kind)
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'], names, unknown=unknown)}>"
    if kind["type"] == "map":
        key, value = (_text(kind[part], names, unknown=unknown) for part in ("keyType", "valueType"))
        return f"map<{key},{value}>"
    fields = (f"{field['name']}:{_text(field['type'], names, unknown=unknown)}" for field in kind["fields"])
    return f"struct<{','.join(fields)}>"
