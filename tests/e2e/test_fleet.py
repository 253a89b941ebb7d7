"""Many pipelines as one command: `sluice fleet` with real databases, an applier of its own, and kills."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.extent import cases, slow
from tests.support.fleets import RunningFleet, below, fresh_databases, line_of, name_of, source
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer

pytestmark = pytest.mark.timeout(1200)
NAMES = ("east", "north", "west")


class Fleet(RunningFleet):
    """The process that runs the pipelines of the folder."""

    def start(self) -> None:
        for name in self.databases:
            if not (self.folder / f"{name}.yaml").exists():
                self.configure(name)
        address = f"127.0.0.1:{self.port}"
        self.process = self.started("fleet", str(self.folder), "--listen", address, log=self.log)

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["pipeline"]: row for row in json.loads(self.get("/status"))["pipelines"]}

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "sluice", *words], capture_output=True, text=True, check=False, timeout=180
        )

    def must(self, name: str, *words: str) -> None:
        done = self.command(*words, "-c", str(self.folder / f"{name}.yaml"))
        assert done.returncode == 0, done.stdout + done.stderr

    def insert(self, *names: str) -> None:
        for name in names:
            self.databases[name].execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")

    def child(self, part: str) -> int:
        """The process of the fleet that is its "applier" or its "forker", or the ingest of a pipeline."""
        words, found = {"applier": "sluice_spark.fleet", "forker": "--fork"}, below(self.process.pid)
        parts = {one: line_of(one) if part in words else name_of(one) for one in found}
        began = {one: found[one] for one, said in parts.items() if words.get(part, part) in said}
        assert began, f"no child that is {part}\n{self.tail()}"
        return min(began, key=lambda one: began[one])


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three databases, of which one is configured with the slot of another."""
    with fresh_databases(postgres, *NAMES) as databases, ExitStack() as stack:
        made = Fleet(tmp_path_factory.mktemp("fleet"), databases)
        taken = f"{databases['west'].slot}_taken"
        databases["north"].execute(f"SELECT pg_create_logical_replication_slot('{taken}', 'pgoutput')")
        made.configure("west", source={**source(databases["west"]), "slot": taken})
        made.start()
        stack.callback(made.end)
        yield made


def test_a_pipeline_with_the_slot_of_another_database_fails_alone(fleet: Fleet) -> None:
    fleet.until(lambda: fleet.is_equal("east", "north"), "two pipelines are in the lake")
    fleet.until(lambda: fleet.status()["west"]["state"] in ("stopped", "lost"), "the third has failed")
    fleet.until(lambda: {fleet.status()[name]["state"] for name in ("east", "north")} == {"healthy"}, "two are healthy")
    assert fleet.rows("west") == []
    page = fleet.get("/").decode()
    assert all(name in page for name in NAMES)
    assert "<script" not in page
    assert json.loads(fleet.get("/pipelines/north/status"))["pipeline"] == "north"


def test_every_series_of_the_one_exposition_names_its_pipeline_and_none_comes_twice(fleet: Fleet) -> None:
    fleet.until(lambda: b"sluice_apply_read_seq" in fleet.get("/metrics"), "the applier is in the metrics")
    lines = fleet.get("/metrics").decode().splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert all('pipeline="' in one for one in series)
    heads = [line for line in lines if line.startswith("# TYPE ")]
    assert len(heads) == len({line.split(" ")[2] for line in heads})
    for component, name in (("ingest", "east"), ("apply", "east"), ("apply", "north"), ("fleet", "west")):
        assert any(f'component="{component}"' in one and f'pipeline="{name}"' in one for one in series)


def test_a_failed_pipeline_runs_once_its_file_is_right_and_somebody_asks(fleet: Fleet) -> None:
    before = {name: fleet.status()[name]["ingest"]["restarts"] for name in ("east", "north")}
    fleet.configure("west")
    fleet.process.send_signal(signal.SIGHUP)
    fleet.until(lambda: fleet.is_equal("west"), "the third is in the lake")
    assert {name: fleet.status()[name]["ingest"]["restarts"] for name in before} == before


@pytest.mark.parametrize("part", cases(["east", "forker", "applier"], quick=["forker"]))
def test_after_a_kill_every_row_of_every_pipeline_is_in_the_lake_once(fleet: Fleet, part: str) -> None:
    victim = fleet.child(part)
    fleet.insert(*NAMES)
    os.kill(victim, signal.SIGKILL)
    fleet.insert(*NAMES)
    fleet.until(lambda: fleet.is_equal(*NAMES), "all rows are in the lake")
    assert fleet.child(part) != victim


@slow
def test_a_lost_slot_stops_its_pipeline_alone_until_it_is_made_again(fleet: Fleet) -> None:
    database = fleet.databases["north"]
    os.kill(fleet.child("north"), signal.SIGSTOP)
    database.cut_stream()
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    os.kill(fleet.child("north"), signal.SIGCONT)
    fleet.until(lambda: fleet.status()["north"]["ingest"]["exit_code"] == 7, "the slot is lost")
    assert fleet.status()["north"]["state"] == "lost"
    fleet.insert("east", "west", "north")
    fleet.until(lambda: fleet.is_equal("east", "west"), "the others go on")
    fleet.must("north", "slot", "recreate", "--confirm", database.slot)
    fleet.process.send_signal(signal.SIGHUP)
    fleet.until(lambda: fleet.status()["north"]["ingest"]["running"], "its ingest runs again")
    fleet.must("north", "verify", "--repair")
    fleet.until(lambda: fleet.is_equal("north"), "no row of the gap is missing")


def test_one_status_shows_all_pipelines_and_ends_with_the_code_of_the_worst(fleet: Fleet) -> None:
    done = fleet.command("status", "--fleet", str(fleet.folder), "--json")
    assert done.returncode in (0, 9), done.stderr
    said = json.loads(done.stdout)
    assert [row["pipeline"] for row in said["pipelines"]] == sorted(NAMES)


def test_a_pipeline_whose_file_is_gone_stops_and_one_whose_file_is_wrong_goes_on(fleet: Fleet) -> None:
    (fleet.folder / "west.yaml").unlink()
    (fleet.folder / "east.yaml").write_text("version: 1\npipeline: east\nsurce: {}\n")
    fleet.process.send_signal(signal.SIGHUP)
    fleet.until(lambda: "west" not in fleet.status(), "the pipeline has left")
    fleet.until(lambda: bool(fleet.status()["east"]["configuration_refused"]), "the file is refused")
    fleet.insert("east")
    fleet.until(lambda: fleet.is_equal("east"), "the pipeline of the wrong file goes on")


def test_a_stop_lets_all_pipelines_finish_and_ends_with_0(fleet: Fleet) -> None:
    fleet.insert("east", "north")
    assert fleet.stop() == 0, fleet.tail()
    slots = [one.slot for one in fleet.databases.values()]
    query = "SELECT slot_name FROM pg_replication_slots WHERE active AND slot_name = ANY(%s)"
    assert fleet.databases["east"].all(query, slots) == []


@slow
def test_an_applier_that_reads_nothing_keeps_no_fleet_from_stopping(tmp_path: Path) -> None:
    """What the fleet says to it is more than a pipe holds."""
    fleet = Fleet(tmp_path, {})
    settings: dict[str, Any] = {
        "version": 1,
        "pipeline": "shop",
        "source": {"dsn": f"postgresql://127.0.0.1:{free_port()}/none", "tables": ["public.*"]},
        "spool": {"uri": (tmp_path / "spool").as_uri()},
        "lake": {"uri": (tmp_path / "lake").as_uri()},
        "tables": {f"public.table_{number:04}": {"freshness": "7s"} for number in range(2_000)},
        "stop_timeout": "2s",
    }
    (fleet.folder / "shop.yaml").write_text(yaml.safe_dump(settings))
    fleet.start()
    try:
        fleet.until(lambda: bool(fleet.status()) and bool(fleet.child("applier")), "it has its applier")
        os.kill(fleet.child("applier"), signal.SIGSTOP)
        (fleet.folder / "other.yaml").write_text("surce: {}\n")
        fleet.process.send_signal(signal.SIGHUP)
        fleet.until(lambda: bool(json.loads(fleet.get("/status"))["refused"]), "it has read its folder again")
        assert fleet.stop() == 75, fleet.tail()
    finally:
        fleet.end()
