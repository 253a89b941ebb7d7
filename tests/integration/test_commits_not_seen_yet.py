"""A transaction that the server has sent, and that no other session sees yet: with synchronous replication it waits for
a standby. The catalog still shows its tables as they were before it.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.catalog_stories import RESYNC, read_again
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline, Running
from tests.support.sources import fresh_database
from tests.support.unseen_commits import invisible
from tools.local.postgres import temporary_server

SWIFT: dict[str, Any] = {**RESYNC, "watch_interval_s": 0.2}
MADE = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'old'), (2, 'old')",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
OTHER_COLUMN = "ALTER TABLE t DROP COLUMN v, ADD COLUMN {} text"
ROWS = ("INSERT INTO t VALUES (3, 'new')", "UPDATE t SET {} = 'new' WHERE id = 1")
STORIES = {name: tuple(one.format(name) for one in (OTHER_COLUMN, *ROWS)) for name in ("v", "w")}
"""Rows in a new column, which has the name of the one that went, or another one."""


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[IngestPipeline]:
    """On a server of its own, with its table made."""
    with temporary_server() as server, fresh_database(server) as database:
        database.execute(*MADE)
        yield IngestPipeline.local(database, tmp_path)


@pytest.mark.parametrize("column", cases(STORIES, quick=["v"]))
def test_rows_that_come_before_others_see_their_new_columns_are_not_taken_for_rows_of_the_old_ones(
    pipeline: IngestPipeline, column: str
) -> None:
    with pipeline.running(**SWIFT) as running:
        running.wait_until_live()
        with invisible(pipeline.database, *STORIES[column]):
            threading.Event().wait(1.0)
            assert pipeline.rows("public.t") == []
        through(pipeline, running)
    read_again(pipeline, **SWIFT)
    pipeline.assert_equal()


def test_a_look_that_does_not_see_a_commit_confirms_nothing_of_its_rows(pipeline: IngestPipeline) -> None:
    """The look begins behind the commit record, which the server sends only afterwards."""
    with pipeline.running(**SWIFT) as running:
        running.wait_until_live()
        (sender,) = pipeline.database.one("SELECT active_pid FROM pg_replication_slots WHERE active")
        os.kill(sender, signal.SIGSTOP)
        try:
            with invisible(pipeline.database, *STORIES["v"]):
                epoch = running.ingest._epoch
                assert epoch is not None
                epoch.watch.run_once()
        finally:
            os.kill(sender, signal.SIGCONT)
        through(pipeline, running)
    read_again(pipeline, **SWIFT)
    pipeline.assert_equal()


def through(pipeline: IngestPipeline, running: Running) -> None:
    """Returns when all that has committed by now is stored."""
    end = pipeline.database.lsn()
    running.wait_until(lambda: pipeline.state().through_lsn >= end)
