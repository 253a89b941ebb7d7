"""Text of the source in every place where a statement could read it as SQL: it arrives in the lake
to the letter.
"""

from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from pyspark.sql import SparkSession

from sluice.contract import keys
from sluice.contract.entries import Changes, Commits
from sluice.contract.envelope import folded, is_reserved
from sluice.contract.schema import TableSchema
from sluice_spark.fold.ranges import MAX_TEXT_BYTES, KeyRanges
from sluice_spark.lake.merge import merge_text
from sluice_spark.lake.plan import MergePlan
from sluice_spark.lake.sql import quote
from sluice_spark.session import private
from tests.spark import lake
from tests.spark.changes import TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import FULL

SECRET = "SLUICE_TEST_HOSTILE"
_SUBSTITUTED = ("${name}", "${env:SLUICE_TEST_HOSTILE}", "${system:user.dir}", "${spark:spark.master}", "${")
_QUOTES_AND_COMMENTS = ("``", "''", "\\'", "\\0", "\\u0027", "X'00'", "--", "/*", "*/", ":p", "\r\n")
PIECES = (*_SUBSTITUTED, *_QUOTES_AND_COMMENTS, *"}$`'\"\\\n\t\x01\x7f;?%_. aBé\u2028\u202e\ufeff🦆")
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
NAMES = TEXTS.filter(lambda name: len(name.encode()) <= 63 and not is_reserved(name))


@dataclass(frozen=True)
class Names:
    """What the source calls things."""

    schema: str
    table: str
    columns: tuple[str, str, str, str, str]


def _distinct(names: list[str]) -> bool:
    return len({folded(name) for name in names}) == len(names)


NAMED = st.builds(Names, NAMES, NAMES, st.lists(NAMES, min_size=5, max_size=5).filter(_distinct).map(tuple))
WORST = Names(
    "${env:SLUICE_TEST_HOSTILE}",
    "odd name/ä a`${x}",
    ("k` ,;{}()=${x}%", "'${env:SLUICE_TEST_HOSTILE}", "ключ.at\n--", "new`/*", "until\\'"),
)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "a credential")


def _schemas(names: Names, table_id: str, default: str, *, kind: str) -> tuple[TableSchema, TableSchema]:
    """The table before and after two columns were added, one with a constant default and one with a
    default that its type cannot hold.
    """
    key, text, at, new, until = names.columns
    full = kind == "bag"
    columns = (column(key, 1, TEXT, key=not full), column(text, 2, TEXT), column(at, 3, TIMESTAMP))
    added = (column(new, 4, TEXT, missing=default), column(until, 5, TIMESTAMP, missing="infinity"))
    first, wider = (table_schema(*some, identity="f" if full else "d") for some in (columns, columns + added))
    named = {"table_id": table_id, "schema_name": names.schema, "table_name": f"{names.table}{kind}"}
    return replace(first, **named), replace(wider, version=2, **named)  # type: ignore[arg-type]


def _old(row: dict[str, Any], schema: TableSchema) -> dict[str, Any] | None:
    return {item.name: row.get(item.name) for item in schema.identity_columns}


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate] if FULL else [Phase.explicit],
    suppress_health_check=list(HealthCheck),
)
@given(names=NAMED, values=st.lists(TEXTS, min_size=4, max_size=4, unique=True), origin=TEXTS)
@example(
    names=WORST,
    values=["user'-${name}\\", "${env:SLUICE_TEST_HOSTILE}", "Dear\\' ${name}\n", "it's \\' `"],
    origin="${env:SLUICE_TEST_HOSTILE}",
)
def test_no_text_of_the_source_is_ever_read_as_sql(
    pipeline: Pipeline, names: Names, values: list[str], origin: str
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / str(pipeline.folder.stat().st_nlink))
    manifest = pipeline.manifest
    one, two, default, other = values
    key, text, at, new, until = names.columns
    kinds = {
        kind: _schemas(names, str(16385 + place), default, kind=kind)
        for place, kind in enumerate(("mirror", "bag", "log"))
    }
    log_name = kinds["log"][0].qualified_name
    for first, _ in kinds.values():
        manifest.table(first)
        manifest.snapshot([{key: one, text: other}, {key: two, text: None}], first)
    end = manifest.lsn + 10
    segments = []
    for first, wider in kinds.values():
        manifest.table(wider)
        old = _old({key: one, text: other}, first) if first.replica_identity == "f" else None
        rows = [Change("u", {key: one, text: two}, old=old), Change("d", old=_old({key: two, text: None}, first))]
        later = [Change("i", {key: default, text: one, new: other}, special={at: "infinity", until: "-infinity"})]
        for place, change in enumerate([*rows, *later]):
            change.lsn, change.ordinal = end, place
        segments += [manifest.segment(rows, first), manifest.segment(later, wider)]
    manifest.append(Changes(tuple(segments), Commits([end], [end], [7], {0: (origin, 5)})), through_lsn=end)
    log = pipeline.apply(tables={log_name: {"targets": [{"kind": "changelog"}]}})
    assert {row.state for row in log.tables.values()} == {"live"}, [row.reason for row in log.tables.values()]
    expected = {
        one: {key: one, text: two, at: None, new: default, until: "infinity"},
        default: {key: default, text: one, at: "infinity", new: other, until: "-infinity"},
    }
    for kind in ("mirror", "bag"):
        assert {row[key]: row for row in _rows(pipeline, kinds[kind][0])} == expected
    changes = {
        row["_sluice_ordinal"]: row
        for row in _rows(pipeline, kinds["log"][0], metadata=True)
        if row["_sluice_op"] != "i" or row[key] == default
    }
    assert {row["_sluice_origin"] for row in changes.values()} == {origin}
    assert changes[1]["_sluice_old"] == {key: two}
    assert (changes[2][key], changes[2][new]) == (default, other)
    assert dict(changes[2]["_sluice_special"]) == {at: "infinity", until: "-infinity"}


def _rows(pipeline: Pipeline, schema: TableSchema, *, metadata: bool = False) -> list[dict[str, Any]]:
    path = pipeline.folder / "lake" / keys.lake_path(schema.schema_name, schema.table_name)
    return lake.rows_in(path, metadata=metadata)


@settings(max_examples=200 if FULL else 40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=TEXTS, other=TEXTS)
def test_a_range_of_text_keys_holds_both_of_its_ends(spark: SparkSession, one: str, other: str) -> None:
    """Ranges are the only values in a statement. The JVM's parser is asked what it reads in them.
    Keys too long for a range get none.
    """
    schema = table_schema(column("id", 1, TEXT, key=True))
    ranges = KeyRanges.of(pa.table({"_sluice_key_0": [one, other]}), schema)
    statement = merge_text(
        MergePlan(schema, (), (), deletes=True, upserts=False, unmatched=False, ranges=ranges), target="t", source="s"
    )
    condition = statement.splitlines()[0].partition(" AND ")[2]
    assert ("t.`id` BETWEEN " in condition) == all(len(key.encode()) <= MAX_TEXT_BYTES for key in (one, other))
    if not condition:
        return
    low, _, high = condition.partition("BETWEEN ")[2].partition(" AND ")
    found = private(spark).sql(f"SELECT {low}, {high}").first()
    assert found is not None
    assert set(found) == {one, other}


@settings(max_examples=200 if FULL else 40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES)
def test_a_quoted_name_is_one_identifier(spark: SparkSession, name: str) -> None:
    assert private(spark).sql(f"SELECT 1 AS {quote(name)}").columns == [name]


def test_no_setting_of_the_operator_turns_substitution_on(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.variable.substitute", "true")
    assert private(session).sql("SELECT '${env:SLUICE_TEST_HOSTILE}'").first()[0] == "${env:SLUICE_TEST_HOSTILE}"  # type: ignore[index, unused-ignore]
