"""The oracle itself: it says equal of what is equal, and sees each kind of damage that it is there
to see.
"""

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.ingesting import IngestPipeline
from tests.support.oracle import Spool
from tests.support.source_setup import since
from tests.support.sources import Database
from tests.support.spool_rows import cast_text
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
    pipeline.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text, body text, n numeric(10,2), d date)",
        "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
        "CREATE TABLE bag (a int, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE emptied (id int PRIMARY KEY)",
        "INSERT INTO emptied VALUES (1)",
        "INSERT INTO t VALUES (0, 'copied', repeat('z', 5000), 1, '0044-03-15 BC')",
    )
    pipeline.run()
    pipeline.database.execute(*CHANGES)
    pipeline.run()


def spool_of(pipeline: IngestPipeline, folder: Path) -> Spool:
    spool = Spool(folder / "spool" / "test")
    spool.read()
    return spool


def test_what_was_read_and_changed_in_every_way_is_equal(pipeline: IngestPipeline, tmp_path: Path) -> None:
    prepared(pipeline)
    with pipeline.database.connect() as connection:
        verdicts = spool_of(pipeline, tmp_path).assert_equal(connection, pipeline.database.publication)
    assert {verdict.table: (verdict.state, verdict.rows) for verdict in verdicts} == {
        "public.t": ("live", 3),
        "public.bag": ("live", 2),
        "public.emptied": ("live", 0),
    }


def test_the_random_workload_over_every_identity_and_many_types_is_equal(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    with Workload(pipeline.database.dsn, seed=7) as workload:
        workload.create()
        pipeline.run()
        workload.transact(150)
        workload.add_column("added", default="it's")
        workload.transact(50)
        pipeline.run()
    with pipeline.database.connect() as connection:
        verdicts = spool_of(pipeline, tmp_path).assert_equal(connection, pipeline.database.publication)
    assert {verdict.state for verdict in verdicts} == {"live"}
    assert sum(verdict.rows for verdict in verdicts) > 200


def test_streamed_and_prepared_transactions_with_parts_rolled_back_are_equal(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    database = pipeline.database
    since(database, 15, "two-phase commit in slots")
    database.execute(
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
    )
    pipeline.run(two_phase=True)
    with database.connect() as connection:
        with connection.transaction():
            connection.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 400) i")
            with connection.transaction(force_rollback=True):
                connection.execute("UPDATE t SET body = 'never'")
            connection.execute("DELETE FROM t WHERE id % 3 = 0")
        for gid, end in (("kept", "COMMIT"), ("gone", "ROLLBACK")):
            connection.execute("BEGIN")
            connection.execute("UPDATE t SET body = %s WHERE id %% 7 = 0", (gid,))
            connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
            connection.execute(f"{end} PREPARED '{gid}'".encode())
    pipeline.run(two_phase=True)
    with database.connect() as connection:
        (verdict,) = spool_of(pipeline, tmp_path).assert_equal(connection, database.publication)
    assert (verdict.state, verdict.rows) == ("live", 267)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (9)",
        "DELETE FROM t WHERE id = 3",
        "UPDATE t SET note = 'silent' WHERE id = 3",
        "TRUNCATE bag",
    ],
)
def test_a_change_that_the_spool_lacks_is_a_silent_difference(
    pipeline: IngestPipeline, tmp_path: Path, statement: str
) -> None:
    prepared(pipeline)
    pipeline.database.execute(statement)
    with pipeline.database.connect() as connection:
        verdicts = spool_of(pipeline, tmp_path).verdicts(connection, pipeline.database.publication)
    assert [verdict.table for verdict in verdicts if verdict.is_silent_difference] == [
        "public.bag" if "bag" in statement else "public.t"
    ]


def test_a_column_that_the_spool_lacks_is_a_silent_difference_though_no_row_changed(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    prepared(pipeline)
    pipeline.database.execute("ALTER TABLE t ADD COLUMN silent int DEFAULT 5")
    with pipeline.database.connect() as connection:
        verdicts = spool_of(pipeline, tmp_path).verdicts(connection, pipeline.database.publication)
    assert [verdict.table for verdict in verdicts if verdict.is_silent_difference] == ["public.t"]


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
    "damage", [lambda folder: min(folder.glob("manifest/*.json")).unlink(), _swap, _cut_segment, _forge_position]
)
def test_damage_of_the_log_or_of_a_file_it_names_is_named(
    pipeline: IngestPipeline, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    prepared(pipeline)
    damage(tmp_path / "spool" / "test")
    with pytest.raises(AssertionError, match="entry"):
        spool_of(pipeline, tmp_path)


def test_a_connection_that_writes_is_not_needed(pipeline: IngestPipeline, tmp_path: Path) -> None:
    """The oracle reads the source in read-only transactions."""
    prepared(pipeline)
    with psycopg.connect(
        pipeline.database.dsn, autocommit=True, options="-c default_transaction_read_only=on"
    ) as connection:
        assert spool_of(pipeline, tmp_path).assert_equal(connection, pipeline.database.publication)


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        (
            ("float4", "float"),
            ("float8", "double"),
            ["-0", "0", "1", "0.1", "1e+15", "1e-05", "3.4028235e+38", "NaN", "Infinity", "-Infinity"],
        ),
        (("date", "date"), ("timestamp", "timestamp_ntz"), ["2024-02-29", "0044-03-15 BC", "infinity", "-infinity"]),
        (("numeric(4,1)", "decimal(4,1)"), ("numeric(8,3)", "decimal(8,3)"), ["-0.5", "0.0", "999.9", "NaN"]),
    ],
)
def test_a_value_of_a_wider_type_is_spelled_as_the_server_spells_its_cast(
    database: Database, before: tuple[str, str], after: tuple[str, str], texts: list[str]
) -> None:
    with database.connect() as connection:
        cast = f"SELECT %s::{before[0]}::{after[0]}::text"
        said = [connection.execute(cast.encode(), (text,)).fetchall()[0][0] for text in texts]
    assert [cast_text(text, before[1], after[1]) for text in texts] == said
