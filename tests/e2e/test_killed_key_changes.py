"""An applier that is killed around a change of the key: the window before it and the key itself end at one
manifest entry, with one marker.
"""

import pytest

from sluice import faults
from tests.e2e.mirror import Mirror
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support.extent import slow

POINTS = ("apply.commit.before@1", "apply.commit.after@1", "apply.commit.before@2", "apply.commit.after@2")


@slow
@pytest.mark.timeout(900)
def test_a_kill_around_a_change_of_the_key_loses_neither_rows_nor_key(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.execute(f"CREATE PUBLICATION {mirror.database.publication} FOR ALL TABLES")
    for number, point in enumerate(POINTS):
        table = f"t{number}"
        mirror.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, code int NOT NULL, v text)",
            f"INSERT INTO {table} SELECT i, i * 10, 'old' FROM generate_series(1, 20) i",
        )
        mirror.follow(tables=())
        mirror.execute(
            f"UPDATE {table} SET v = 'changed' WHERE id < 5",
            f"DELETE FROM {table} WHERE id = 7",
            f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (code), ADD n int DEFAULT 7",
        )
        # No row follows: the catalog alone says it.
        mirror.pipeline.run(tables=())
        mirror.pipeline.run(tables=())
        name, _, passage = point.partition("@")
        monkeypatch.setenv("SLUICE_FAULTS", f"{name}=crash@{passage}")
        killed = run_applier(mirror.options(**SMALL_JVM))
        assert killed.code == faults.CRASHED, killed.output
        monkeypatch.delenv("SLUICE_FAULTS")
        mirror.apply()
        mirror.assert_equal(table)
        mirror.execute(
            f"UPDATE {table} SET id = id + 100, v = 'again' WHERE code < 60",
            f"DELETE FROM {table} WHERE code = 90",
            f"INSERT INTO {table} VALUES (1, 1, 'new', 1)",
        )
        mirror.follow(tables=())
        mirror.assert_equal(table)
        assert mirror.pipeline.table(f"public.{table}").resyncs.counts == {}
