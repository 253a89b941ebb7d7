"""What a Delta table's metadata says of its columns, and whether rows can be added to it without
Spark.

Owns: a table that asks for anything that `sluice_spark.lake.direct` does not do is refused by the
name of what it asks for; an unknown feature is refused. Pure: JSON in, Arrow types out. (Delta
protocol: Schema Serialization Format, Column Mapping, Table Features.)
"""

import json
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.contract.lake_layout import LEADING
from sluice.errors import UnsupportedChange
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.sql import quote

FIELD_ID = b"PARQUET:field_id"
CHECKPOINT_VERSIONS = 50
"""At least so many lie between two checkpoints, and fewer than twice as many."""
IN_NO_COMMIT = 1_000_000_000
"""As the interval of a table says that its checkpoints are written beside its commits."""
TABLE_PROPERTIES = {
    # Any name that PostgreSQL allows works as a column name.
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    # A timestamp column may be added later, and Delta then asks for the feature to be there already.
    "delta.feature.timestampNtz": "supported",
    # Delta would write a checkpoint in the commit of each version that this divides, and count the table's files
    # there even if it does not write one: jobs of Spark, for which the window waits.
    "delta.checkpointInterval": str(IN_NO_COMMIT),
}
"""Of all tables that the applier makes, but for what their layout does without."""
Field = Mapping[str, Any]
"""A column in Delta's own spelling."""
_STATED = "delta.dataSkippingStatsColumns"
_FOOTERS = "parquet.column.statistics.enabled"
_DICTIONARY = "parquet.enable.dictionary"
NEITHER = {_FOOTERS: "false", _DICTIONARY: "false"}
"""Settings of a session that writes floating-point columns whose names in data files are not known yet."""
_FLOATING = ("float", "double")
_WITHOUT_BOUNDS = (*_FLOATING, "boolean", "binary")
_PRIMITIVE: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_FEATURES = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that a table may list. Those that would need work here are refused where they are used."""
_SWITCHES = (
    "delta.appendOnly",
    "delta.enableIcebergCompatV1",
    "delta.enableIcebergCompatV2",
    "delta.enableIcebergCompatV3",
    "delta.randomizeFilePrefixes",
)
_FEED, _TRACKING = "delta.enableChangeDataFeed", "delta.enableRowTracking"
_ROW_IDS, _ROW_VERSIONS = (f"delta.rowTracking.materializedRow{one}ColumnName" for one in ("Id", "CommitVersion"))
ROW_ID, ROW_VERSION, CHANGE = "_sluice_row_id", "_sluice_row_version", "_sluice_change"
"""What rows on their way to a data file have beside the table's columns: the id of the row that each one replaces or
copies, the version that made the copied one (both NULL where Delta gives new ones), and what a reader of the change
data feed sees of it."""
_COLUMN_RULES = (
    "CURRENT_DEFAULT",
    "EXISTS_DEFAULT",
    "__CHAR_VARCHAR_TYPE_STRING",
    "delta.generationExpression",
    "delta.identity.start",
    "delta.invariants",
    "delta.typeChanges",
)
_ID = "delta.columnMapping.id"
_PHYSICAL = "delta.columnMapping.physicalName"


def checkpoint_interval(path: str, properties: Mapping[str, str]) -> int:
    """Versions between two checkpoints of the table at `path`. A checkpoint is a Spark job: tables that begin together
    must not all need theirs at the same time. Raises ValueError.
    """
    stated = int(properties.get("delta.checkpointInterval", IN_NO_COMMIT))
    own = CHECKPOINT_VERSIONS + zlib.crc32(path.encode()) % CHECKPOINT_VERSIONS
    return own if stated >= IN_NO_COMMIT else max(1, stated)


def made_with(without: Collection[str]) -> dict[str, str]:
    """The properties of a table that is made anew, but for those `without` which it is to be."""
    return {name: value for name, value in TABLE_PROPERTIES.items() if name not in without}


def is_floating(column: Field) -> bool:
    """Whether it holds floating-point numbers, alone or inside of another type."""
    return bool(_floating(column))


def _floating(column: Field, *, mapped: bool = True) -> list[str]:
    """Where data files have its floating-point numbers, empty parts for names that Delta has yet to give. In a table
    that is not `mapped` they have the names of columns.
    """
    path, kind = column["metadata"].get(_PHYSICAL, "" if mapped else column["name"]), column["type"]
    while isinstance(kind, dict) and kind["type"] == "array":
        path, kind = f"{path}.list.element", kind["elementType"]
    if isinstance(kind, dict):
        return [f"{path}.{inner}" for child in kind.get("fields", ()) for inner in _floating(child, mapped=mapped)]
    return [path] if kind in _FLOATING else []


def with_names(column: Field) -> Field:
    """`column` with its name in data files, which Delta would choose later, where it holds floating-point numbers."""
    if not is_floating(column):
        return column
    kind = column["type"]
    if isinstance(kind, dict) and kind["type"] == "struct":
        kind = {**kind, "fields": [with_names(child) for child in kind["fields"]]}
    return {**column, "type": kind, "metadata": {_PHYSICAL: f"col-{uuid.uuid4()}", **column["metadata"]}}


def statistics_properties(
    columns: Sequence[Field], *, present: Mapping[str, str] = TABLE_PROPERTIES, partitions: Collection[str] = ()
) -> dict[str, str]:
    """What keeps every writer of a table with these columns, Spark as well, from stating bounds of floating-point
    numbers, and from dictionaries of them: Spark leaves out the other zero by one. `present` are the properties
    that the table has, and of columns that are `partitions` Delta takes no statistics.
    """
    mapped = present.get("delta.columnMapping.mode", "none").lower() != "none"
    paths = [path for column in columns for path in _floating(column, mapped=mapped)]
    if not paths and _STATED not in present:
        return {}
    kinds = {column["name"]: column["type"] for column in columns[:LEADING]}
    stated = [
        quote(name)
        for name, kind in kinds.items()
        if isinstance(kind, str) and kind not in _WITHOUT_BOUNDS and name not in partitions
    ]
    return {
        _STATED: ",".join(stated),
        _FOOTERS: str(not paths).lower(),
        **{f"{_DICTIONARY}#{path}": "false" for path in paths if path and path[0] != "."},
    }


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in SQL, and the field of the data files that holds it."""

    name: str
    field: pa.Field


@dataclass(frozen=True, slots=True)
class RowTracking:
    """The columns of data files in which a table that tracks its rows has the `ids` of rows that were moved there, and
    the `versions` that made them. No schema names them. (Delta protocol: Row Tracking.)
    """

    ids: str
    versions: str


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table's columns, in order, and what decides how it may be written. `tracking` is there where rows keep their
    ids, and `feeds` says that there is a change data feed: readers see what became of each row.
    """

    columns: tuple[Column, ...]
    properties: Mapping[str, str]
    tracking: RowTracking | None = None
    feeds: bool = False

    @property
    def arrow(self) -> pa.Schema:
        """The columns of a data file."""
        return pa.schema([column.field for column in self.columns])

    @property
    def names(self) -> dict[str, str]:
        """Names in SQL by those in data files."""
        return {column.field.name: column.name for column in self.columns}

    @property
    def hidden(self) -> dict[str, pa.Field]:
        """The fields of a data file that no schema names, by what rows on their way call them."""
        found = {CHANGE: pa.field("_change_type", pa.string())} if self.feeds else {}
        if self.tracking is not None:
            found[ROW_ID] = pa.field(self.tracking.ids, pa.int64())
            found[ROW_VERSION] = pa.field(self.tracking.versions, pa.int64())
        return found

    @property
    def follows_rows(self) -> bool:
        """Whether a new row has to know the one that it replaces."""
        return self.feeds or self.tracking is not None

    def field(self, name: str) -> pa.Field:
        """The data files' field of the column `name`."""
        return next(column.field for column in self.columns if column.name == name)

    @property
    def statistics_columns(self) -> int:
        """Of how many leading columns Delta collects statistics; -1: of all."""
        return int(self.properties.get("delta.dataSkippingNumIndexedCols", "32"))


def require_partitions_kept(partitions: Collection[str], before: str, fields: Iterable[Field]) -> None:
    """Raises UnsupportedChange where the columns `partitions` of the schema `before` are not among `fields` by name."""
    if not partitions:
        return
    old = {field["name"]: field["metadata"].get(_ID) for field in json.loads(before)["fields"]}
    new = {field["name"]: field["metadata"].get(_ID) for field in fields}
    for name in partitions:
        if name not in new or new[name] != old[name]:
            raise UnsupportedChange(
                f"the lake table is partitioned by column {name!r}, which was renamed or dropped",
                hint="correct partition_by in the configuration, and resync the table",
            )


def read_layout(
    schema: str, *, properties: Mapping[str, str], partitions: Collection[str], features: Collection[str]
) -> TableLayout:
    """The layout of a table with this schema (Delta's JSON), properties, partition columns and
    features. Raises NotDirect.
    """
    if not _is_on(properties, "delta.enableDeletionVectors"):
        raise NotDirect("deletion vectors are off")
    if properties.get("delta.columnMapping.mode", "none").lower() not in ("none", "name"):
        raise NotDirect("columns are mapped by id")
    switched = [name for name in _SWITCHES if _is_on(properties, name)]
    if switched:
        raise NotDirect(f"{switched[0]} is on")
    if any(name.startswith("delta.constraints.") for name in properties):
        raise NotDirect("the table has constraints")
    if partitions:
        raise NotDirect("the table is partitioned")
    unknown = sorted(set(features) - _FEATURES)
    if unknown:
        raise NotDirect(f"the table has the feature {unknown[0]}")
    return TableLayout(
        tuple(_column(field) for field in json.loads(schema)["fields"]),
        dict(properties),
        tracking=_tracking(properties),
        feeds=_is_on(properties, _FEED),
    )


def _tracking(properties: Mapping[str, str]) -> RowTracking | None:
    if not _is_on(properties, _TRACKING):
        return None
    if not {_ROW_IDS, _ROW_VERSIONS} <= properties.keys():
        raise NotDirect("the table does not say where its data files have the ids of rows")
    return RowTracking(properties[_ROW_IDS], properties[_ROW_VERSIONS])


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    # Delta stores a switch as it was spelled, and reads any spelling.
    return properties.get(name, "").lower() == "true"


def _column(field: Mapping[str, Any]) -> Column:
    return Column(field["name"], _field(field, top=True))


def _field(field: Mapping[str, Any], *, top: bool) -> pa.Field:
    rules = [name for name in _COLUMN_RULES if name in field["metadata"]]
    if rules:
        raise NotDirect(f"a column has {rules[0]}")
    if not field["nullable"]:
        raise NotDirect("a column is NOT NULL")
    kind, metadata = field["type"], field["metadata"]
    identifier = {FIELD_ID: str(metadata[_ID]).encode()} if _ID in metadata else None
    if isinstance(kind, dict) and kind["type"] == "struct" and top:
        arrow: pa.DataType = pa.struct([_field(child, top=False) for child in kind["fields"]])
    else:
        arrow = _type(kind)
    return pa.field(metadata.get(_PHYSICAL, field["name"]), arrow, metadata=identifier)


def _type(kind: Any) -> pa.DataType:
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return pa.list_(pa.field("element", _type(kind["elementType"]), nullable=bool(kind["containsNull"])))
        if kind["type"] == "map":
            return pa.map_(_type(kind["keyType"]), _type(kind["valueType"]))
        raise NotDirect(f"a column holds a {kind['type']} inside another type")
    if kind.startswith("decimal("):
        precision, scale = kind[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    if kind not in _PRIMITIVE:
        raise NotDirect(f"a column has the type {kind.split('(')[0]}")
    return _PRIMITIVE[kind]
