"""`sluice up` whose JVM is killed, as by a kernel that is out of memory: Python is left, and finds out by itself."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tests.support.extent import slow
from tests.support.fleets import jvm_below
from tests.support.pipeline import QUICK_JAVA, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline

pytestmark = [pytest.mark.timeout(900), slow]


def test_up_goes_on_with_a_new_jvm_and_each_row_comes_once(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = {"slot": database.slot, "publication": database.publication, "tables": ["public.*"]}
    settings: dict[str, dict[str, Any]] = {"source": source, "apply": {"driver_memory": "1500MiB", "conf": QUICK_JAVA}}
    pipeline = Pipeline(tmp_path, name="t", dsn=database.dsn, settings=settings)

    def rows() -> list[int]:
        try:
            table = DeltaTable((tmp_path / "lake" / "public" / "t").as_uri())
        except TableNotFoundError:
            return []
        found = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
        return [int(value) for value in found.column(0).to_pylist()]

    with pipeline.start("up") as process:
        wait_until(lambda: rows() == [1], what="the snapshot", processes=(process,), timeout=300)
        os.kill(jvm_below(process.pid), signal.SIGKILL)
        database.execute("INSERT INTO t VALUES (2)")
        wait_until(lambda: rows() == [1, 2], what="the row behind the kill", processes=(process,), timeout=300)
