"""kill -9 of ingest at each step of a repair: the next start does it, and what it did twice says the
same thing twice.
"""

import uuid
from pathlib import Path
from typing import Any

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.control import REPAIR, Request
from sluice.contract.entries import Repair
from sluice.manifest.reader import load_state, read_entries
from sluice.store.opening import open_store
from sluice_spark.read.changes import read_rows
from tests.support.extent import slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline

POINTS = (
    pytest.param("repair.begun", marks=slow),
    pytest.param("repair.taken", marks=slow),
    pytest.param("repair.append.before", marks=slow),
    pytest.param("manifest.append.after", marks=slow),
    "repair.append.after",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_repair_that_is_killed_is_done_by_the_next_ingest(database: Database, tmp_path: Path, point: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 9) i"
    )
    named = {"tables": ["public.*"], "slot": database.slot, "publication": database.publication}
    settings: dict[str, dict[str, Any]] = {"spool": {"progress_interval": "1s"}, "source": named}
    pipeline = Pipeline(tmp_path, name="t", dsn=database.dsn, settings=settings)
    done = pipeline.run("run", "--until-caught-up")
    assert done.returncode == 0, done.stderr
    store = open_store(pipeline.spool_uri, prefix="t/", options={})
    key = keys.control_request(uuid.uuid4().hex)
    store.create(key, Request(REPAIR, "public", "t", "2026-01-01T00:00:00+00:00", (("3",), ("99",))).encode())
    # The first entry of a start is its `opened`: the repair's is the second one at the earliest.
    hit = "@2" if point.startswith("manifest") else "@1"
    with pipeline.start("run", environment={"SLUICE_FAULTS": f"{point}=crash{hit}"}) as killed:
        assert killed.wait(90) == faults.CRASHED, killed.log_tail(40)
    with pipeline.start("run") as healthy:
        wait_until(lambda: key not in set(store.list(keys.CONTROL)), what="the repair", processes=(healthy,))
        assert healthy.stop() == 0, healthy.log_tail(40)
    repairs = [entry.body for entry, _ in read_entries(store, after_seq=0) if isinstance(entry.body, Repair)]
    assert 1 <= len(repairs) <= 2
    for repair in repairs:
        rows = [row for segment in repair.segments for table in read_rows(store, segment) for row in table.to_pylist()]
        assert sorted((row["_sluice_op"], (row["_sluice_old"] or row)["id"]) for row in rows) == [("d", 99), ("u", 3)]
    (table,) = load_state(store).tables.values()
    assert table.state == "live"
