"""An applier that has failed from its first window on: the record is what spark_jobs.ledger._row writes for a copying table with trouble."""

import json
from pathlib import Path

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_an_applier_that_has_never_succeeded_on_a_new_table_is_not_healthy(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(state="copying", reason="StoreRefused: the lake refuses: AccessDenied", succeeded=False)
        pipe.wait(lambda: "table.copying" in pipe.get("/status")[1])
        seen = pipe.looks()
        problems = json.loads(pipe("status", "--json").stdout)["problems"]
        print(seen, problems)
        assert seen["status"][0] != 0
        assert seen["/status"][1] != "healthy"


def test_a_dead_applier_whose_clock_is_an_hour_fast_is_seen(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(ago=-3600)  # its last word, ten minutes ago, by a clock that is wrong
        pipe.wait(lambda: pipe.looks()["/status"][1] == "healthy")
        import time

        time.sleep(140)
        seen = pipe.looks()
        print(seen)
        assert seen["status"][0] != 0


def test_a_record_with_a_time_that_cannot_be_read_leaves_no_green_metric(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied()
        pipe.wait(lambda: 'sluice_health{pipeline="shop",state="healthy"} 1.0' in pipe.health())
        pipe.applied(2, written_at="not a time")
        import time

        time.sleep(150)
        code = pipe.process.poll() if pipe.process else None
        seen = {"status": pipe("status", "--json"), "/status": pipe.get("/status"), "/readyz": pipe.get("/readyz"), "metrics": pipe.health(), "run": code}
        print(seen)
        assert not [line for line in seen["metrics"] if "healthy" in line]
