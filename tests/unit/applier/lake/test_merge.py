"""The MERGE statement as text: clauses only for what occurs, names and values quoted, ranges that
cover every key.
"""

import re

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from sluice_spark.fold.ranges import MAX_RANGES, KeyRanges
from sluice_spark.kinds import mirror
from sluice_spark.lake.merge import merge_text
from sluice_spark.lake.plan import MergePlan
from sluice_spark.lake.sql import literal, quote
from tests.spark.changes import INT8, TEXT, TIMESTAMP, column, table_schema

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("big", 2, TEXT), column("at", 3, TIMESTAMP))


def _text(**changed: object) -> str:
    values: dict[str, object] = {
        "kept": (),
        "metadata": ("_sluice_lsn",),
        "deletes": False,
        "upserts": True,
        "unmatched": False,
        **changed,
    }
    return merge_text(MergePlan(SCHEMA, **values), target="delta.`/lake`", source="`w`")  # type: ignore[arg-type]


def test_an_upsert_has_no_delete_and_no_case() -> None:
    assert _text() == (
        "MERGE INTO delta.`/lake` AS t USING `w` AS s ON t.`id` = s.`_sluice_key_0`\n"
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.`id`, t.`big` = s.`big`, t.`at` = s.`at`, "
        "t.`_sluice_lsn` = s.`_sluice_lsn`\n"
        "WHEN NOT MATCHED THEN INSERT (`id`, `big`, `at`, `_sluice_lsn`) VALUES (s.`id`, s.`big`, "
        "s.`at`, s.`_sluice_lsn`)"
    )


def test_deletes_alone_need_no_target_values_and_no_insert() -> None:
    assert _text(deletes=True, upserts=False).splitlines()[1:] == ["WHEN MATCHED THEN DELETE"]


def test_deletes_beside_upserts_are_distinguished_and_never_inserted() -> None:
    text = _text(deletes=True)
    assert "WHEN MATCHED AND s.`_sluice_deleted` THEN DELETE" in text
    assert "WHEN NOT MATCHED AND NOT s.`_sluice_deleted` THEN INSERT" in text


def test_G02_an_unsent_value_keeps_the_lakes_or_raises() -> None:
    text = _text(kept=(SCHEMA.columns[1],))
    assert "t.`big` = CASE WHEN s.`_sluice_keep_2` THEN t.`big` ELSE s.`big` END" in text
    assert "CASE WHEN s.`_sluice_keep_2` THEN raise_error(" in text


def test_a_kept_column_keeps_its_marked_text() -> None:
    text = _text(kept=(SCHEMA.columns[2],), metadata=("_sluice_special",))
    assert "map_filter(coalesce(t.`_sluice_special`" in text
    assert f"s.`_sluice_keep_3` AND name = {literal('at')}" in text


def test_a_row_that_must_not_match_is_kept_from_matching() -> None:
    assert " ON s.`_sluice_match` AND t.`id` = " in _text(unmatched=True)


def test_a_key_that_may_be_marked_is_compared_with_its_text() -> None:
    schema = table_schema(column("at", 1, TIMESTAMP, key=True))
    text = merge_text(
        MergePlan(schema, (), mirror.KIND.metadata(schema, wanted=True), deletes=True, upserts=False, unmatched=False),
        target="t",
        source="s",
    )
    assert (
        f"t.`at` <=> s.`_sluice_key_0` AND element_at(t.`_sluice_special`, {literal('at')}) <=> "
        "s.`_sluice_key_special_0`"
    ) in text


@given(st.text())
def test_quoting_cannot_be_left(text: str) -> None:
    assert "`" not in quote(text)[1:-1].replace("``", "")
    assert re.fullmatch(r"CAST\(X'[0-9a-f]*' AS STRING\)", literal(text))


def _ranges(keys: list[int]) -> str:
    text = _text(ranges=KeyRanges.of(pa.table({"_sluice_key_0": pa.array(keys, pa.int64())}), SCHEMA))
    return text.splitlines()[0].partition("`_sluice_key_0` AND ")[2]


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
    ranges = KeyRanges.of(pa.table({"_sluice_key_0": pa.array(keys, pa.int64())}), SCHEMA)
    assert ranges.worth_their_cost(files=files) == worth
