"""Floating-point values that PostgreSQL calls equal and that have several bit patterns: NaN is one value everywhere,
the two zeros are one key and two values. In snapshots, as text and in binary form, with and without a key.
"""

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from tests.e2e.mirror import Mirror, without
from tests.support.extent import FULL, slow
from tests.support.ingesting import IngestPipeline

LEFT_OUT = () if FULL else ("bare", "bare4", "keyed_full")
"""tests/e2e/test_changes.py has such values without a key."""
TABLES = without(LEFT_OUT, "bare", "bare4", "keyed", "keyed_full")
BARE = without(LEFT_OUT, "bare", "bare4")
PATTERNS = ("'NaN'", "-'NaN'::float8", "'0'", "'-0'", "1.5")
"""The second one is a NaN with its sign set."""


def _followed(mirror: Mirror, *, binary: bool) -> None:
    pipeline: IngestPipeline = mirror.pipeline
    mirror.follow(source=dataclasses.replace(pipeline.options().source, binary=binary))


def _floats(mirror: Mirror, table: str) -> list[str]:
    scan = QueryBuilder().register("lake", mirror.delta(table)).execute("select d from lake")
    return sorted(str(value) for value in pa.table(scan.read_all())["d"].to_pylist())


def _rows(values: Sequence[str]) -> str:
    return ", ".join(f"({value}, 1)" for value in values)


@pytest.mark.timeout(600)
@slow
@pytest.mark.parametrize("binary", [True, False])
def test_every_nan_is_one_value_and_the_zeros_are_one_key(mirror: Mirror, *, binary: bool) -> None:
    def run(*statements: str) -> None:
        mirror.execute(*without(LEFT_OUT, *statements))

    def change(*statements: str) -> None:
        mirror.transaction(*without(LEFT_OUT, *statements))

    run(
        *(f"DROP TABLE IF EXISTS {table}" for table in TABLES),
        "CREATE TABLE bare (d float8, v int)", "CREATE TABLE bare4 (d float4, v int)",
        "CREATE TABLE keyed (d float8 PRIMARY KEY, v int)", "CREATE TABLE keyed_full (d float8 PRIMARY KEY, v int)",
        *(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in ("bare", "bare4", "keyed_full")),
        *(f"INSERT INTO {table} VALUES {_rows(PATTERNS)}" for table in ("bare", "bare4")),
        *(f"INSERT INTO {table} VALUES {_rows(PATTERNS[1::2])}" for table in ("keyed", "keyed_full")),
    )  # fmt: skip
    _followed(mirror, binary=binary)
    mirror.assert_equal(*TABLES)

    # Each window names a row by another pattern than the one that it has in the lake or came with.
    run(*(f"INSERT INTO {table} VALUES {_rows(PATTERNS[:4])}" for table in ("bare", "bare4")))
    change(
        "UPDATE keyed SET v = v + 1", "UPDATE keyed SET d = 'NaN' WHERE d = 'NaN'",
        "UPDATE keyed SET d = '0' WHERE d = 0",
        "UPDATE keyed_full SET d = 'NaN', v = 7 WHERE d = 'NaN'", "UPDATE keyed_full SET d = '0', v = 7 WHERE d = 0",
    )  # fmt: skip
    _followed(mirror, binary=binary)
    mirror.assert_equal(*TABLES)
    for table in BARE:
        assert _floats(mirror, table) == ["-0.0", "-0.0", "0.0", "0.0", "1.5", "nan", "nan", "nan", "nan"]

    one_of_each = "DELETE FROM {0} WHERE ctid IN (SELECT min(ctid) FROM {0} GROUP BY d::text)"
    change(
        *(one_of_each.format(table) for table in ("bare", "bare4")),
        "DELETE FROM keyed WHERE d = 'NaN'", "INSERT INTO keyed VALUES (-'NaN'::float8, 9)",
        "DELETE FROM keyed_full WHERE d = 0", "INSERT INTO keyed_full VALUES ('-0', 9)",
    )  # fmt: skip
    _followed(mirror, binary=binary)
    mirror.assert_equal(*TABLES)

    # All that are left, of both patterns, in one window.
    run("DELETE FROM bare WHERE d = 'NaN'", "DELETE FROM bare4 WHERE d = 'NaN'")
    run("DELETE FROM keyed", "DELETE FROM keyed_full WHERE d = 'NaN'")
    _followed(mirror, binary=binary)
    mirror.assert_equal(*TABLES)
    for table in BARE[:1]:
        assert _floats(mirror, table) == ["-0.0", "0.0"]
    assert {mirror.pipeline.table(f"public.{table}").state for table in TABLES} == {"live"}
