"""The catalog and the publication change at each step of a snapshot. In the end the table equals the
source, or it says by name that it does not.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sluice import faults
from tests.chaos import stages
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline, Running
from tests.support.oracle import Spool

STEPS = ("snapshot.locked", "snapshot.read", "snapshot.final.before", "snapshot.final.after")
CHANGES: dict[str, tuple[str, ...]] = {
    "enum label renamed": ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",),
    "dropped from the publication and added again": (
        "ALTER PUBLICATION {publication} DROP TABLE t",
        "UPDATE t SET n = -1 WHERE id < 5",
        "ALTER PUBLICATION {publication} ADD TABLE t",
    ),
    "publish toggled": (
        "ALTER PUBLICATION {publication} SET (publish = 'insert')",
        "UPDATE t SET n = -2 WHERE id < 5",
        "ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
    ),
    "partition attached with its rows": ("ALTER TABLE parted ATTACH PARTITION part_b FOR VALUES FROM (100) TO (200)",),
    "column added with a rewrite": ("ALTER TABLE t ADD COLUMN drawn float8 DEFAULT random()",),
    "column added with a constant": ("ALTER TABLE t ADD COLUMN added int DEFAULT 7",),
    "column renamed": ("ALTER TABLE t RENAME COLUMN n TO m",),
    "table truncated": ("TRUNCATE t",),
    "table rewritten": ("ALTER TABLE t ALTER COLUMN n TYPE bigint USING n + 1",),
}
QUICK = ["publish toggled", "partition attached with its rows", "column added with a rewrite"]


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stages.hurried(monkeypatch)
    yield
    faults.arm("")


@pytest.mark.parametrize("step", cases(STEPS, quick=["snapshot.final.after"]))
@pytest.mark.parametrize("what", cases(CHANGES, quick=QUICK), ids=lambda what: what.replace(" ", "_"))
def test_what_changes_while_a_table_is_read_is_followed_or_named(
    pipeline: IngestPipeline, tmp_path: Path, what: str, step: str
) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id int PRIMARY KEY, n int, m_ mood)",
        "INSERT INTO t SELECT i, i, 'sad' FROM generate_series(1, 30) i",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE part_b (id int PRIMARY KEY)",
        "INSERT INTO part_b SELECT i FROM generate_series(100, 120) i",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t, parted WITH (publish_via_partition_root = true)",
    )
    gate = tmp_path / "gate"
    # `parted` is read first, `t` second; both are locked together.
    faults.arm(f"{step}=hold:{gate}@{1 if 'partition' in what or step == 'snapshot.locked' else 2}")
    with pipeline.running(watch_interval_s=0.2, tables=()) as running:
        running.wait_until(lambda: faults.passages(step) > 0)
        changing = threading.Thread(target=_change, args=(pipeline, what))
        changing.start()
        # What waits for the snapshot's own lock goes on when the snapshot does; everything else happens now.
        changing.join(0.5)
        for _ in range(2):
            # The catalog watch looks while the snapshot is under way, and must not take for known what
            # the snapshot does not have.
            seen = beat(running)
            running.wait_until(lambda seen=seen: beat(running) > seen)
        gate.touch()
        changing.join(60)
        assert not changing.is_alive()
        running.wait_until(lambda: not any(table.state == "snapshot" for table in pipeline.state().tables.values()))
        database.execute("INSERT INTO parted VALUES (1)")
    pipeline.run(tables=())
    pipeline.run(tables=())
    spool = Spool(tmp_path / "spool" / "test")
    spool.read()
    with database.connect() as connection:
        for verdict in spool.assert_equal(connection, database.publication):
            print(what, step, verdict)


def beat(running: Running) -> float:
    """When the catalog watch last went round."""
    return running.ingest.status.catalog_beat


def _change(pipeline: IngestPipeline, what: str) -> None:
    with psycopg.connect(pipeline.database.dsn, autocommit=True) as connection:
        for statement in CHANGES[what]:
            connection.execute(statement.format(publication=pipeline.database.publication).encode())
