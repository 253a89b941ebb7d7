"""The MERGE statement as text: clauses only for what occurs, names and values quoted, ranges of every key."""

import re
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from sluice.contract.envelope import SPECIAL
from sluice.contract.schema import TableSchema
from sluice_spark.fold.ranges import MAX_RANGES, KeyRanges
from sluice_spark.lake.merge import merge_text
from sluice_spark.lake.plan import MergePlan
from sluice_spark.lake.sql import literal, quote
from tests.spark.changes import INT8, TEXT, TIMESTAMP, column, table_schema

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("big", 2, TEXT), column("at", 3, TIMESTAMP))


def _text(schema: TableSchema = SCHEMA, **changed: Any) -> str:
    fields = {"kept": (), "metadata": ("_sluice_lsn",), "deletes": False, "upserts": True, "unmatched": False}
    return merge_text(MergePlan(schema, **{**fields, **changed}), target="delta.`/lake`", source="`w`")


def test_a_statement_has_only_the_clauses_that_its_window_needs() -> None:
    assert _text(deletes=True, upserts=False).splitlines()[1:] == ["WHEN MATCHED THEN DELETE"]
    plain = _text().splitlines()[1:]
    assert [line.partition(" THEN ")[0] for line in plain] == ["WHEN MATCHED", "WHEN NOT MATCHED"]
    assert "CASE" not in _text()


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"deletes": True}, ["MATCHED AND s.`_sluice_deleted` THEN DELETE", "AND NOT s.`_sluice_deleted` THEN INSERT"]),
        ({"kept": SCHEMA.columns[1:2]}, ["`big` = CASE WHEN s.`_sluice_keep_2` THEN t.`big` ELSE s.`big` END"]),
        ({"kept": SCHEMA.columns[1:2]}, ["CASE WHEN s.`_sluice_keep_2` THEN raise_error("]),
        (
            {"kept": SCHEMA.columns[2:], "metadata": (SPECIAL,)},
            [f"map_filter(coalesce(t.`{SPECIAL}`", f"s.`_sluice_keep_3` AND name = {literal('at')}"],
        ),
        ({"unmatched": True}, [" ON s.`_sluice_match` AND t.`id` = "]),
        (
            {"schema": table_schema(column("at", 1, TIMESTAMP, key=True))},
            ["t.`at` <=> s.`_sluice_key_0` AND ", f"t.`{SPECIAL}`, {literal('at')}) <=> s.`_sluice_key_special_0`"],
        ),
    ],
    ids=["deletes", "G02 unsent", "G02 unsent and no row", "kept marks", "no match", "marked key"],
)
def test_rows_are_found_deleted_and_kept_as_the_window_says(window: dict[str, Any], said: list[str]) -> None:
    assert [clause for clause in said if clause not in _text(**window)] == []


@given(st.text())
def test_quoting_cannot_be_left(text: str) -> None:
    assert "`" not in quote(text)[1:-1].replace("``", "")
    assert re.fullmatch(r"CAST\(X'[0-9a-f]*' AS STRING\)", literal(text))


def _ranges_of(keys: list[int]) -> KeyRanges:
    return KeyRanges.of(pa.table({"_sluice_key_0": pa.array(keys, pa.int64())}), SCHEMA)


def _ranges(keys: list[int]) -> str:
    return _text(ranges=_ranges_of(keys)).splitlines()[0].partition("`_sluice_key_0` AND ")[2]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=200))
def test_integer_ranges_cover_every_key_and_stay_few(keys: list[int]) -> None:
    text = _ranges(keys)
    ranges = [
        tuple(int(end.rstrip("L")) for end in part.split(" BETWEEN ")[1].split(" AND "))
        for part in text.strip("()").split(" OR ")
    ]
    assert len(ranges) <= MAX_RANGES
    assert all(any(low <= key <= high for low, high in ranges) for key in keys)
    assert {low for low, _ in ranges} | {high for _, high in ranges} <= set(keys)


def test_distant_keys_get_ranges_of_their_own() -> None:
    assert _ranges([1, 2, 3, 1000, 1001, 9_000_000]).count("BETWEEN") == 3


@pytest.mark.parametrize(
    ("keys", "files", "worth"),
    [
        (list(range(1000, 2000, 3)), 12, True),
        (list(range(1000, 2000, 3)), 11, False),
        ([key * 1_000_003 for key in range(1000)], 63, False),
        ([key * 1_000_003 for key in range(1000)], 64, True),
        ([-(2**63), 2**63 - 1], 12, True),
    ],
)
def test_ranges_are_used_where_they_can_skip_files(keys: list[int], files: int, worth: bool) -> None:
    assert _ranges_of(keys).worth_their_cost(files=files) == worth
