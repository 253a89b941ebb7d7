"""A process that stands still in the middle of a snapshot gives the source free by itself."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

HELD = """
    SELECT (SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relname = 'wide'
        WHERE l.pid <> pg_backend_pid()),
        (SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND backend_type = 'client backend'
            AND datname = current_database() AND pid <> pg_backend_pid())"""


def _held(database: Database) -> tuple[int, int]:
    """Locks on the table, and sessions that hold back VACUUM."""
    row = database.one(HELD)
    return int(row[0]), int(row[1])


@pytest.fixture
def reading(database: Database, tmp_path: Path) -> Iterator[tuple[Pipeline, SluiceProcess]]:
    """An ingest that reads initial rows slowly, with the shortest bound there is."""
    database.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, v text)",
        "INSERT INTO wide SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i",
        "CREATE PUBLICATION {p} FOR TABLE wide",
    )
    source = {"slot": database.slot, "publication": database.publication, "snapshot_hold": "0s"}
    settings = {"source": {**source, "snapshot_connections": 1}}
    pipeline = Pipeline(tmp_path, name="t", dsn=database.dsn, settings=settings)
    held = {"SLUICE_FAULTS": "segment.put.before=delay:3"}
    with pipeline.start("run", environment=held) as process:
        yield pipeline, process


def test_the_server_ends_the_snapshot_of_a_frozen_ingest_and_its_lock(
    reading: tuple[Pipeline, SluiceProcess], database: Database
) -> None:
    pipeline, process = reading
    wait_until(lambda: min(_held(database)) > 0, what="rows are read", processes=(process,))
    os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _held(database) == (0, 0), what="the source is free", timeout=60)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(
        lambda: (
            [table["state"] for table in pipeline.tables()] == ["snapshot"]
            and pipeline.tables()[0]["snapshot_rows"] == 60000
        ),
        what="the table is read",
        processes=(process,),
    )
