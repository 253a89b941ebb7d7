"""A table that asks for anything that direct commits do not do is refused by the name of it."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.layout import FIELD_ID, RowTracking, TableLayout, read_layout, statistics_properties, with_names

ON = {"delta.enableDeletionVectors": "true"}
MAP = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}


def delta_field(
    name: str,
    kind: Any,
    *,
    physical: str = "",
    number: int = 0,
    nullable: bool = True,
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """A column as Delta's log spells it."""
    mapped = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number} if physical else {}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {**mapped, **metadata}}


def delta_array(kind: Any, *, nulls: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": nulls}


def _struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def delta_schema(*fields: dict[str, Any]) -> str:
    return json.dumps(_struct(*fields))


def _read(*fields: dict[str, Any], features: tuple[str, ...] = (), **properties: str) -> TableLayout:
    named = {f"delta.{name.replace('__', '.')}": value for name, value in properties.items()}
    return read_layout(
        delta_schema(*(fields or (delta_field("id", "long"),))),
        properties={**ON, **named},
        partitions=[],
        features=features,
    )


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ("byte", pa.int8()),
        ("decimal(38,10)", pa.decimal128(38, 10)),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        (MAP, pa.map_(pa.string(), pa.string())),
        (
            delta_array(delta_array("long"), nulls=False),
            pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64())), nullable=False)),
        ),
        (
            _struct(delta_field("a", "long", physical="col-a", number=9)),
            pa.struct([pa.field("col-a", pa.int64(), metadata={FIELD_ID: b"9"})]),
        ),
    ],
)
def test_types_and_physical_names_are_those_of_the_data_files(kind: Any, arrow: pa.DataType) -> None:
    layout = _read(delta_field("c", kind, physical="col-c", number=3), columnMapping__mode="name")
    field = pa.field("col-c", arrow, metadata={FIELD_ID: b"3"})
    assert layout.field("c").equals(field, check_metadata=True)
    assert layout.arrow.equals(pa.schema([field]), check_metadata=True)


def test_without_column_mapping_a_column_is_called_as_in_sql() -> None:
    assert _read(delta_field("c", "long")).field("c").equals(pa.field("c", pa.int64()), check_metadata=True)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"enableDeletionVectors": "false"}, "deletion vectors are off"),
        ({"columnMapping__mode": "id"}, "columns are mapped by id"),
        ({"appendOnly": "true"}, "delta.appendOnly is on"),
        # Delta takes a switch in any spelling.
        ({"appendOnly": "True"}, "delta.appendOnly is on"),
        ({"enableIcebergCompatV1": "true"}, "delta.enableIcebergCompatV1 is on"),
        ({"enableIcebergCompatV2": "TRUE"}, "delta.enableIcebergCompatV2 is on"),
        ({"enableIcebergCompatV3": "true"}, "delta.enableIcebergCompatV3 is on"),
        ({"enableRowTracking": "true"}, "the table does not say where its data files have the ids of rows"),
        ({"randomizeFilePrefixes": "true"}, "delta.randomizeFilePrefixes is on"),
        ({"constraints__positive": "id > 0"}, "the table has constraints"),
    ],
)
def test_a_property_that_would_need_work_is_refused_by_name(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(NotDirect, match=f"^{reason}$"):
        _read(features=(), **properties)


def test_a_table_that_follows_its_rows_says_how_its_data_files_call_what_no_schema_names() -> None:
    names = {"rowTracking__materializedRowIdColumnName": "_row-id-col-1"}
    names["rowTracking__materializedRowCommitVersionColumnName"] = "_row-commit-version-col-2"
    layout = _read(features=("rowTracking", "domainMetadata"), enableRowTracking="True", **names)
    assert layout.tracking == RowTracking("_row-id-col-1", "_row-commit-version-col-2")
    assert (layout.follows_rows, layout.feeds) == (True, False)
    assert [field.name for field in layout.hidden.values()] == ["_row-id-col-1", "_row-commit-version-col-2"]
    fed = _read(features=("changeDataFeed",), enableChangeDataFeed="True")
    assert (fed.follows_rows, fed.feeds, fed.tracking) == (True, True, None)
    assert [field.name for field in fed.hidden.values()] == ["_change_type"]
    # Names that are left of a time when it was on.
    off = _read(features=("rowTracking", "domainMetadata"), enableRowTracking="false", **names)
    assert (off.follows_rows, off.hidden) == (False, {})


def test_what_is_switched_off_is_not_refused() -> None:
    layout = _read(
        enableDeletionVectors="TRUE", enableChangeDataFeed="false", appendOnly="False", columnMapping__mode="NAME"
    )
    assert [column.name for column in layout.columns] == ["id"]


INVARIANT: dict[str, Any] = {"delta.invariants": "{}"}
OF_A_FEATURE: dict[str, Any] = {
    "CURRENT_DEFAULT": "1",
    "EXISTS_DEFAULT": "1",
    "__CHAR_VARCHAR_TYPE_STRING": "char(3)",
    "delta.generationExpression": "id",
    "delta.identity.start": 1,
    "delta.typeChanges": [],
    **INVARIANT,
}


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (delta_field("c", "long", nullable=False), "a column is NOT NULL"),
        (delta_field("c", _struct(delta_field("a", "long", nullable=False))), "a column is NOT NULL"),
        *(
            (delta_field("c", "long", metadata={name: value}), f"a column has {name}")
            for name, value in OF_A_FEATURE.items()
        ),
        (delta_field("c", _struct(delta_field("a", "long", metadata=INVARIANT))), "a column has delta.invariants"),
        *(
            (delta_field("c", kind), f"a column has the type {kind}")
            for kind in ("variant", "string collate UTF8_LCASE", "interval day to second")
        ),
        *(
            (delta_field("c", kind), "a column holds a struct inside another type")
            for kind in (delta_array(_struct()), _struct(delta_field("a", _struct(delta_field("b", "long")))))
        ),
    ],
)
def test_a_column_that_would_need_work_is_refused_by_name(field: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotDirect) as refused:
        _read(delta_field("id", "long"), field)
    assert str(refused.value) == reason


def test_partitions_and_unknown_features_are_refused() -> None:
    with pytest.raises(NotDirect, match="partitioned"):
        read_layout(delta_schema(delta_field("id", "long")), properties=ON, partitions=["id"], features=[])
    with pytest.raises(NotDirect, match=r"the feature typeWidening$"):
        _read(features=("deletionVectors", "clustering", "typeWidening"))
    assert _read(features=("deletionVectors", "columnMapping", "timestampNtz", "changeDataFeed"))


def test_statistics_are_of_32_leading_columns_unless_the_table_says_so() -> None:
    assert _read().statistics_columns == 32
    assert _read(dataSkippingNumIndexedCols="-1").statistics_columns == -1


STATED = "delta.dataSkippingStatsColumns"
MARKS = delta_field("_sluice_special", MAP)


@pytest.mark.parametrize("kind", ["float", "double", delta_array("double"), _struct(delta_field("d", "double"))])
def test_spark_states_bounds_of_no_floating_point_column(kind: Any) -> None:
    others = [delta_field(name, name) for name in ("long", "string", "boolean", "binary", "decimal(38,10)")]
    found = statistics_properties([delta_field("f", kind), *others, delta_field("a `b`, c", "date"), MARKS])
    assert found == {
        STATED: "`long`,`string`,`decimal(38,10)`,`a ``b``, c`",
        "parquet.column.statistics.enabled": "false",
    }


def _without_dictionary(*fields: dict[str, Any], **more: Any) -> list[str]:
    names = [name.partition("#") for name in statistics_properties([*fields], **more)]
    return [name for setting, _, name in names if setting == "parquet.enable.dictionary" and name]


def test_floating_point_numbers_have_no_dictionary_by_the_names_of_data_files() -> None:
    fields = [delta_field("x", "double", physical="c1"), delta_field("y", delta_array("float"), physical="c2")]
    old = delta_field("_sluice_old", _struct(*fields, delta_field("i", "long", physical="c3")), physical="old")
    assert _without_dictionary(*fields, old, MARKS) == ["c1", "c2.list.element", "old.c1", "old.c2.list.element"]
    unmapped = _struct(delta_field("x", "double"), delta_field("y", delta_array("float")))
    found = _without_dictionary(delta_field("x", "double"), delta_field("_sluice_old", unmapped), present={})
    assert found == ["x", "_sluice_old.x", "_sluice_old.y.list.element"]


def test_a_floating_point_column_has_its_name_before_it_is_made() -> None:
    plain = delta_field("i", "long")
    made = with_names(delta_field("old", _struct(delta_field("d", "double"), plain)))
    inner, other = made["type"]["fields"]
    assert {len(one["metadata"]["delta.columnMapping.physicalName"]) for one in (made, inner)} == {40}
    assert other == plain
    assert with_names(made) == made


def test_a_table_without_floats_is_left_alone_unless_its_statistics_were_chosen_by_name() -> None:
    columns = [delta_field("a", "long"), MARKS]
    assert statistics_properties(columns) == {}
    assert statistics_properties(columns, present={STATED: ""}) == {
        STATED: "`a`",
        "parquet.column.statistics.enabled": "true",
    }


def test_bounds_are_stated_of_the_leading_columns() -> None:
    columns = [delta_field("f", "float"), *(delta_field(f"c{number}", "long") for number in range(40))]
    assert statistics_properties(columns)[STATED].split(",") == [f"`c{number}`" for number in range(31)]
