"""`sluice up` whose JVM is killed, as by a kernel that is out of memory: Python is left, and finds out by itself."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.extent import slow
from tests.support.fleets import jvm_below, numbers_in
from tests.support.pipeline import QUICK_JAVA, new_pipeline, wait_until
from tests.support.sources import Database

pytestmark = [pytest.mark.timeout(900), slow]


def test_up_goes_on_with_a_new_jvm_and_each_row_comes_once(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipeline = new_pipeline(database, tmp_path, apply={"driver_memory": "1500MiB", "conf": QUICK_JAVA})

    def rows() -> list[int]:
        return numbers_in(tmp_path / "lake" / "public" / "t")

    with pipeline.start("up") as process:
        wait_until(lambda: rows() == [1], what="the snapshot", processes=(process,), timeout=300)
        os.kill(jvm_below(process.pid), signal.SIGKILL)
        database.execute("INSERT INTO t VALUES (2)")
        wait_until(lambda: rows() == [1, 2], what="the row behind the kill", processes=(process,), timeout=300)
