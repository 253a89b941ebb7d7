"""The oracle itself: it says equal of what is equal, and sees each kind of damage that it is there
to see. The random workload reaches what it is there for.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.sources import Database
from tests.support.workload import Workload

CHANGES = (
    "INSERT INTO t VALUES (1, 'one', repeat('x', 5000), 'NaN', 'infinity')",
    "INSERT INTO t VALUES (2, 'two', repeat('y', 5000), 1.5, '2024-01-01')",
    "UPDATE t SET note = 'other' WHERE id = 1",
    "UPDATE t SET id = 3 WHERE id = 2",
    "ALTER TABLE t ADD COLUMN added int DEFAULT 7",
    "INSERT INTO t VALUES (4, NULL, NULL, NULL, NULL, NULL)",
    "DELETE FROM t WHERE id = 1",
    "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (NULL, NULL)",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
    "UPDATE bag SET b = 'z' WHERE a IS NULL",
    "TRUNCATE emptied",
)


def prepared(pipeline: IngestPipeline) -> None:
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, note text, body text, n numeric(10,2), d date)",
        "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
        "CREATE TABLE bag (a int, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE emptied (id int PRIMARY KEY)",
        "INSERT INTO emptied VALUES (1)",
        "INSERT INTO t VALUES (0, 'copied', repeat('z', 5000), 1, '0044-03-15 BC')",
    )
    pipeline.run(*CHANGES)


def test_what_was_read_and_changed_in_every_way_is_equal(pipeline: IngestPipeline) -> None:
    prepared(pipeline)
    rows = {verdict.table: verdict.rows for verdict in pipeline.assert_equal()}
    assert rows == {"public.t": 3, "public.bag": 2, "public.emptied": 0}


def test_the_random_workload_over_every_identity_and_many_types_is_equal(pipeline: IngestPipeline) -> None:
    with Workload(pipeline.database.dsn, seed=7) as workload:
        workload.create()
        pipeline.run()
        workload.transact(150)
        workload.add_column("added", default="it's")
        workload.transact(50)
        pipeline.run()
    assert sum(verdict.rows for verdict in pipeline.assert_equal()) > 200


def _swap(folder: Path) -> None:
    one, two = sorted(folder.glob("manifest/*.json"))[-2:]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def _cut_segment(folder: Path) -> None:
    path = max(folder.glob("data/*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])


def _forge_position(folder: Path) -> None:
    """An entry that leaves a hole, in a chain that is whole: only the position it continues from
    tells.
    """
    last = max(folder.glob("manifest/*.json"))
    entry = json.loads(last.read_bytes())
    entry["from_lsn"] = entry["through_lsn"] + 8
    last.write_text(json.dumps(entry | {"kind": "progress", "progress": {}, "through_lsn": entry["through_lsn"] + 16}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: min(folder.glob("manifest/*.json")).unlink(),
        pytest.param(_swap, marks=slow),
        pytest.param(_cut_segment, marks=slow),
        pytest.param(_forge_position, marks=slow),
    ],
)
def test_damage_of_the_log_or_of_a_file_it_names_is_named(
    pipeline: IngestPipeline, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    prepared(pipeline)
    damage(tmp_path / "spool" / "test")
    with pytest.raises(AssertionError, match="entry"):
        pipeline.verdicts()


TRANSACTIONS = 150


def test_it_sends_every_kind_of_change_of_every_identity(database: Database) -> None:
    database.execute("CREATE PUBLICATION {p} FOR ALL TABLES")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.slot}', 'pgoutput')")
    with Workload(database.dsn, seed=3) as workload:
        workload.create()
        workload.transact(TRANSACTIONS)
        assert workload.committed() == TRANSACTIONS
    query = (
        "SELECT chr(get_byte(data, 0)), CASE WHEN chr(get_byte(data, 0)) IN ('U', 'D') THEN "
        "chr(get_byte(data, 5)) ELSE '' END, count(*)"
        f" FROM pg_logical_slot_get_binary_changes('{database.slot}', NULL, NULL, 'proto_version', "
        f"'1', 'publication_names', '{database.publication}')"
        " GROUP BY 1, 2"
    )
    seen = {(tag, mark): count for tag, mark, count in database.all(query)}
    assert seen["C", ""] >= TRANSACTIONS
    assert {("I", ""), ("U", "N"), ("U", "K"), ("U", "O"), ("D", "K"), ("D", "O"), ("T", "")} <= set(seen)
