"""Columns added to tables that nobody writes to afterwards: the lake has them, with the values that
the source's rows read as.
"""

import pytest

from tests.e2e.mirror import FOLLOWED, LAKES, Mirror
from tests.support.extent import FULL, cases

DEFAULTS = (
    "note text DEFAULT 'it''s ${none}'",
    "day date DEFAULT 'infinity'",
    "plain int",
    "counts bigint[] DEFAULT '{1,NULL,-3}'",
    "words text[] DEFAULT ARRAY['it''s', 'a,b', '', NULL, 'NULL', '\\ \"']",
    "prices numeric(6,2)[] DEFAULT '{1.5}'",
    "shares real[] DEFAULT '{0.1,Infinity,-0}'",
    "days date[] DEFAULT '{2024-01-01,infinity}'",
    "grid int[] DEFAULT '{{1},{2}}'",
)


@pytest.fixture(scope="module")
def quiet(mirror: Mirror) -> Mirror:
    mirror.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, v int)",
        "CREATE TABLE bag (v int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE written (id int PRIMARY KEY)",
        "INSERT INTO keyed SELECT i, i FROM generate_series(1, 3) i",
        "INSERT INTO bag VALUES (1), (1)",
    )
    mirror.follow()
    mirror.execute(
        "INSERT INTO keyed VALUES (4, 4)", "DELETE FROM keyed WHERE id = 1", "INSERT INTO written VALUES (1)"
    )
    for table in ("keyed", "bag", "written"):
        mirror.execute(*(f"ALTER TABLE {table} ADD COLUMN {column}" for column in DEFAULTS))
    mirror.execute("INSERT INTO written (id, note) VALUES (2, 'given')")
    mirror.follow()
    if FULL:
        mirror.rebuild()
    return mirror


@pytest.mark.parametrize("lake", cases(LAKES, quick=[FOLLOWED]))
@pytest.mark.parametrize("table", ["keyed", "bag", "written"])
def test_a_column_that_no_row_announces_is_in_the_lake_with_its_default(quiet: Mirror, table: str, lake: str) -> None:
    assert quiet.pipeline.table(f"public.{table}").state == "live"
    applied = quiet.applied(lake)[f"public.{table}"]
    assert applied.state == "live", applied.reason
    quiet.assert_equal(table, lake=lake)
    assert quiet.complete(lake).left_out == {}


def test_a_column_that_no_row_announces_does_not_disturb_what_comes_later(quiet: Mirror) -> None:
    quiet.execute(
        "INSERT INTO keyed (id, v) VALUES (9, 9)",
        "UPDATE keyed SET note = NULL WHERE id = 2",
        "ALTER TABLE keyed ADD COLUMN later text DEFAULT 'l'",
    )
    quiet.execute("INSERT INTO keyed (id) VALUES (10)")
    quiet.follow()
    quiet.assert_equal("keyed")
