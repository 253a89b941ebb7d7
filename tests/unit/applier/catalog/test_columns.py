import json
import re
from typing import Any

import pytest

from sluice_spark.catalog.columns import Column, columns_of, hive_type, spark_type, unity_type
from sluice_spark.catalog.entries import Entry

STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {}},
        {"name": "b", "type": {"type": "array", "elementType": "variant", "containsNull": True}, "metadata": {}},
    ],
}
MAP = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}


@pytest.mark.parametrize(
    ("kind", "hive", "spark", "unity"),
    [
        ("long", "bigint", "bigint", "LONG"),
        ("integer", "int", "int", "INT"),
        ("decimal(38,10)", "decimal(38,10)", "decimal(38,10)", "DECIMAL"),
        ("timestamp_ntz", "timestamp", "timestamp_ntz", "TIMESTAMP_NTZ"),
        ("variant", "string", "variant", "VARIANT"),
        (MAP, "map<string,int>", "map<string,int>", "MAP"),
        (STRUCT, "struct<a:bigint,b:array<string>>", "struct<a:bigint,b:array<variant>>", "STRUCT"),
    ],
)
def test_a_type_is_spelled_as_each_catalog_has_it(kind: Any, hive: str, spark: str, unity: str) -> None:
    assert (hive_type(kind), spark_type(kind), unity_type(kind)) == (hive, spark, unity)


def test_columns_come_from_the_schema_of_the_log_with_their_comments() -> None:
    fields = [
        {"name": "Id", "type": "long", "nullable": False, "metadata": {"comment": "c" * 300}},
        {"name": "v", "type": "string", "nullable": True, "metadata": {"delta.columnMapping.id": 2}},
    ]
    found = columns_of(json.dumps({"type": "struct", "fields": fields}))
    assert found == (Column("Id", "long", "c" * 255, nullable=False), Column("v", "string"))


def test_names_types_and_comments_are_lines_that_glue_takes() -> None:
    """(AWS Glue: Single-line string pattern; a comment has 255 bytes at most.)"""
    old = {"type": "struct", "fields": [{"name": "new\nline", "type": "long"}]}
    said = "What it is:\r\n\tin two lines\x07\nColumn rule: mask" + "ü" * 300
    fields = [{"name": "Two\nLines", "type": old, "metadata": {"comment": said}}]
    columns = columns_of(json.dumps({"type": "struct", "fields": fields}))
    ((name, kind, comment),) = Entry("s.t", "s3://lake/s/t", "shop", "1", columns).listed
    for text in (name, kind, comment):
        assert re.fullmatch("[\t\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*", text)
    assert (name, kind) == ("two?lines", "struct<new?line:bigint>")
    assert comment.startswith("What it is: in two lines? Column rule: maskü")
    assert 253 < len(comment.encode()) <= 255


@pytest.mark.parametrize("schema", ["{}", "[]", '{"fields": [{"name": "a"}]}', '{"fields": [1]}'])
def test_a_schema_that_is_none_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="cannot be understood"):
        columns_of(schema)
