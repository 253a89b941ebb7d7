"""The comparison that decides every end-to-end test finds each kind of difference, and only
differences.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.sources import Database
from tools.local.compare import Comparison, compare_table

ROWS: list[dict[str, Any]] = [{"id": 1, "name": "one", "amount": None}, {"id": 2, "name": None, "amount": 2.5}]
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("_sluice_special", pa.map_(pa.string(), pa.string())),
    ]
)


@pytest.fixture
def source(database: Database) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text, amount float8)",
        "INSERT INTO t VALUES (1, 'one', NULL), (2, NULL, 2.5)",
    )
    return database


def compare(source: Database, lake: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Comparison:
    write_deltalake(lake / "public" / "t", pa.Table.from_pylist(rows, schema=schema))
    with source.connect() as connection:
        return compare_table(connection, schema="public", table="t", lake_uri=f"file://{lake}")


def test_equal_tables_have_no_difference_and_one_checksum(source: Database, tmp_path: Path) -> None:
    outcome = compare(source, tmp_path, ROWS[::-1])
    assert outcome.is_equal
    assert outcome.differences == ()
    assert (outcome.source_rows, outcome.lake_rows) == (2, 2)
    assert outcome.source_checksum == outcome.lake_checksum


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:1], "is not in the lake"),
        ([*ROWS, {"id": 3, "name": "three", "amount": 1.0}], "is not at the source"),
        ([*ROWS, ROWS[0]], "more than once"),
        ([ROWS[0], {**ROWS[1], "name": ""}], "differs in name"),
        ([ROWS[0], {**ROWS[1], "amount": 2.5000000000000004}], "differs in amount"),
        ([ROWS[0], {**ROWS[1], "amount": -2.5}], "differs in amount"),
        ([ROWS[0], {**ROWS[1], "_sluice_special": [("amount", "2.5")]}], "differs in amount"),
        ([ROWS[0], {**ROWS[1], "amount": None}], "differs in amount"),
    ],
)
def test_each_kind_of_difference_is_found_and_named_without_a_value(
    source: Database, tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    outcome = compare(source, tmp_path, rows)
    assert not outcome.is_equal
    assert outcome.source_checksum != outcome.lake_checksum
    assert message in outcome.differences[0]
    assert "three" not in str(outcome.differences)


def test_a_marked_value_counts_as_its_text(source: Database, tmp_path: Path) -> None:
    assert compare(
        source, tmp_path, [ROWS[0], {**ROWS[1], "amount": None, "_sluice_special": [("amount", "2.5")]}]
    ).is_equal


def test_a_column_that_one_side_lacks_is_a_difference(source: Database, tmp_path: Path) -> None:
    outcome = compare(source, tmp_path, ROWS, schema=pa.schema([SCHEMA.field("id"), SCHEMA.field("name")]))
    assert "['amount'] are not in the lake" in outcome.differences[0]


def test_a_table_that_the_lake_lacks_is_a_difference_even_when_it_is_empty(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with database.connect() as connection:
        outcome = compare_table(connection, schema="public", table="t", lake_uri=str(tmp_path))
    assert outcome.differences == ("the lake has no such table",)


def test_duplicates_without_a_key_are_counted(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (1), (2)")
    schema = pa.schema([("id", pa.int32())])
    assert compare(database, tmp_path, [{"id": 1}, {"id": 2}, {"id": 1}], schema).is_equal
    outcome = compare(database, tmp_path / "other", [{"id": 1}, {"id": 2}, {"id": 2}], schema)
    assert outcome.differences == ("1 rows are not in the lake", "1 rows are not at the source")


def test_a_changelog_is_compared_by_the_inserts_behind_its_last_truncate(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (2), (2)")
    schema = pa.schema(
        [("id", pa.int32()), ("_sluice_op", pa.string()), ("_sluice_lsn", pa.int64()), ("_sluice_ordinal", pa.int64())]
    )
    changes = [(1, "i", 10, 0), (2, "i", 10, 1), (None, "t", 20, 0), (2, "i", 20, 1), (2, "i", 30, 0)]
    assert compare(
        database, tmp_path, [dict(zip(schema.names, change, strict=True)) for change in changes], schema
    ).is_equal
