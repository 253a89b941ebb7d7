"""Tables that get other names, come again under names that were used, and are read again by
themselves: the lake table of each is the source's, and its readers never see half of it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import DeltaTable

from sluice.tables.policies import Policies
from tests.e2e.mirror import Mirror
from tests.support.background import beside
from tests.support.extent import slow

TABLES = ("kept", "swapped_a", "swapped_b", "again", "rewritten")
RENAMED = ("kept_later", "swapped_a", "swapped_b", "again", "rewritten")
ROWS = 2_000


@contextmanager
def polled(mirror: Mirror, table: str) -> Iterator[set[int]]:
    """How many rows a reader found in the lake table at each look, until the block ends."""
    seen: set[int] = set()
    path = str(mirror.lake_path() / mirror.path(table))

    def poll(ended: threading.Event) -> None:
        while not ended.is_set():
            seen.add(pa.table(DeltaTable(path).scan()).num_rows)

    with beside(poll):
        yield seen


@slow
def test_tables_that_live_on_under_other_names_and_generations_are_equal_in_the_lake(mirror: Mirror) -> None:
    policies = Policies()
    for table in TABLES:
        mirror.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, '{table}' FROM generate_series(1, {ROWS}) i",
        )
    mirror.execute(f"CREATE PUBLICATION {mirror.database.publication} FOR ALL TABLES")
    mirror.follow(policies=policies)
    mirror.assert_equal(*TABLES)

    mirror.execute("UPDATE kept SET v = 'before' WHERE id < 10", "ALTER TABLE kept RENAME TO kept_later")
    mirror.execute("UPDATE kept_later SET v = 'after' WHERE id > 1990", "DELETE FROM kept_later WHERE id = 5")
    mirror.transaction(
        "INSERT INTO swapped_a VALUES (-1, 'was a')",
        "ALTER TABLE swapped_a RENAME TO between",
        "ALTER TABLE swapped_b RENAME TO swapped_a",
        "ALTER TABLE between RENAME TO swapped_b",
        "INSERT INTO swapped_a VALUES (-2, 'was b')",
        "DELETE FROM swapped_b WHERE id = 7",
    )
    mirror.execute("INSERT INTO again VALUES (-1, 'old')", "DROP TABLE again")
    mirror.execute("CREATE TABLE again (id int PRIMARY KEY, w int)", "INSERT INTO again VALUES (1, 1)")
    mirror.execute("ALTER TABLE rewritten ALTER v TYPE int USING length(v)", "DELETE FROM rewritten WHERE id = 1")
    with polled(mirror, "rewritten") as seen:
        mirror.follow(policies=policies)
    assert seen
    assert seen <= {ROWS, ROWS - 1}
    mirror.follow(policies=policies)
    mirror.assert_equal(*RENAMED)
    assert mirror.complete().left_out == {}
    assert mirror.complete().versions.keys() == {f"public.{table}" for table in RENAMED}
    states = {table.table_name: table for table in mirror.pipeline.state().tables.values() if table.state == "live"}
    assert {name: table.resyncs.counts for name, table in states.items() if table.resyncs.counts} == {
        "rewritten": {"rewrite": 1}
    }
    assert (mirror.path("kept_later"), mirror.path("swapped_a")) == ("public/kept", "public/swapped_b")

    mirror.execute("UPDATE swapped_a SET v = 'last' WHERE id = 3", "INSERT INTO again VALUES (2, 2)")
    mirror.rebuild()
    mirror.follow(policies=policies)
    mirror.assert_equal(*RENAMED)
