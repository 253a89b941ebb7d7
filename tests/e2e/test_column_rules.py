"""Column rules from the source to the lake: what a rule keeps out is in no file of spool, lake and scratch, whatever
happened; the lake has what it should have, `verify` says so and finds what differs, and a repair brings it.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sluice.contract import resyncs
from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.contract.verified import DIFFERENT, EQUAL
from sluice.operate.compare.repairing import repair
from tests.e2e.mirror import Mirror
from tests.e2e.test_verify import Verified
from tests.support import canary
from tests.support.column_rules import HIDDEN, LARGE, under

RULES = ColumnRules({"card": EXCLUDED})
OPTIONS = under(RULES, "public.keyed", "public.whole", "public.bag")
TABLES = ("keyed", "whole", "bag")


@pytest.fixture(scope="module")
def ruled(mirror: Mirror, spark: SparkSession) -> Iterator[Verified]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resyncs, "REST", 0.0)
        patch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))
        columns = "card text, v text, large text, n numeric(9,2)"
        mirror.execute(
            f"CREATE TABLE keyed (id int PRIMARY KEY, {columns})",
            f"CREATE TABLE whole (id int PRIMARY KEY, {columns})",
            f"CREATE TABLE bag (id int, {columns})",
            "ALTER TABLE keyed ALTER card SET STORAGE EXTERNAL, ALTER large SET STORAGE EXTERNAL",
            "ALTER TABLE whole REPLICA IDENTITY FULL",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
            f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE {', '.join(TABLES)}",
            *(
                f"INSERT INTO {table} SELECT i, {LARGE} || i, 'v' || i % 3, repeat('y', 9000), i FROM "
                "generate_series(1, 200) i"
                for table in TABLES
            ),
        )
        mirror.follow(**OPTIONS)
        for table in TABLES:
            mirror.execute(
                f"UPDATE {table} SET v = 'changed' WHERE id <= 20",
                f"UPDATE {table} SET card = '{HIDDEN} again' WHERE id BETWEEN 10 AND 30",
                f"UPDATE {table} SET id = id + 1000 WHERE id BETWEEN 40 AND 50",
                f"DELETE FROM {table} WHERE id > 190",
                f"INSERT INTO {table} VALUES (500, {LARGE}, 'one', 'twin', 1), (501, '{HIDDEN} b', 'one', 'twin', 1)",
            )
        mirror.follow(**OPTIONS)
        for table in TABLES:
            mirror.execute(
                f"ALTER TABLE {table} RENAME card TO number",
                f"ALTER TABLE {table} ADD w int DEFAULT 3, ADD card text DEFAULT '{HIDDEN} default'",
                f"UPDATE {table} SET number = '{HIDDEN} c', w = 4 WHERE id < 5",
                f"ALTER TABLE {table} DROP number",
                f"INSERT INTO {table} (id, card) VALUES (600, '{HIDDEN} d')",
            )
        mirror.follow(**OPTIONS)
        yield Verified(mirror, spark, **OPTIONS)


def test_the_lake_has_what_the_rules_leave(ruled: Verified) -> None:
    for table in TABLES:
        columns = ("id", "v", "large", "n", "w")
        with ruled.mirror.database.connect() as connection:
            found = connection.execute(f"SELECT {', '.join(columns)} FROM {table}".encode()).fetchall()
        assert sorted(map(repr, ruled.mirror.values(table, "id"))) == sorted(repr((row[0],)) for row in found)
        assert all("card" not in row and "number" not in row for row in ruled.mirror.rows(table))
    verdicts = ruled.verdicts()
    assert {name: (one.outcome, one.reason) for name, one in verdicts.items()} == dict.fromkeys(TABLES, (EQUAL, ""))


def test_what_differs_is_found_and_repaired_and_nothing_comes_in_by_that(ruled: Verified) -> None:
    ruled.corrupt("keyed", "UPDATE {} SET v = 'broken' WHERE id = 17")
    ruled.corrupt("keyed", "DELETE FROM {} WHERE id = 18")
    verdict = ruled.verdicts("keyed")["keyed"]
    assert verdict.outcome == DIFFERENT
    assert [row.key for row in (*verdict.difference.changed, *verdict.difference.missing)] == [("17",), ("18",)]
    with ruled.mirror.pipeline.running(**ruled.options, watch_interval_s=0.1):
        repair(ruled.mirror.pipeline.store, verdict, seconds=60)
    ruled.mirror.follow(**ruled.options)
    assert ruled.verdicts("keyed")["keyed"].outcome == EQUAL


def test_what_the_rules_keep_out_is_in_no_file(ruled: Verified) -> None:
    ruled.mirror.apply()
    assert canary.in_stored(ruled.mirror.lake_path().parent, HIDDEN) == []
    assert canary.in_stored(ruled.mirror.lake_path().parent, "twin"), "the scan reads what is compressed"
