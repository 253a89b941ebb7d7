"""Many pipelines as one command: `sluice fleet` with real databases, an applier of its own, and kills."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.extent import slow
from tests.support.fleets import FleetFolder, fresh_databases, source, until
from tests.support.sources import Database
from tools.local.guard import Guard
from tools.local.postgres import PostgresServer, free_port

pytestmark = pytest.mark.timeout(1200)
NAMES = ("east", "north", "west")


class Fleet(FleetFolder):
    """The process that runs the pipelines of the folder."""

    def __init__(self, folder: Path, databases: dict[str, Database]) -> None:
        super().__init__(folder, databases)
        self.port = free_port()
        self.log = folder / "fleet.log"
        for name in databases:
            self.configure(name)

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluice", "fleet", str(self.folder), "--listen", f"127.0.0.1:{self.port}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.guard = Guard(-self.process.pid, signal.SIGKILL)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def end(self) -> None:
        if self.process.poll() is None:
            self.stop()
        self.guard.dismiss()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            found: bytes = answer.read()
        return found

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["pipeline"]: row for row in json.loads(self.get("/status"))["pipelines"]}

    def command(self, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "sluice", *words, "-c", str(self.folder / f"{name}.yaml")],
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def insert(self, *names: str) -> None:
        for name in names:
            self.databases[name].execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")

    def until(self, claim: Callable[[], bool], what: str) -> None:
        until(claim, what, ended=self.process.poll, tail=self.tail)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def child(self, part: str) -> int:
        """The process of the fleet that is its "applier" or its "forker", or the ingest of a pipeline."""
        words = {"applier": "sluice_spark.fleet", "forker": "--fork"}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                line = (path / "cmdline").read_bytes().decode(errors="replace")
                parent = _parent(int(path.name))
                ours = self.process.pid in ((parent,) if part in words else (parent, _parent(parent)))
                if ours and (words[part] in line if part in words else (path / "comm").read_text().strip() == part):
                    return int(path.name)
        raise AssertionError(f"no child that is {part}\n{self.tail()}")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three databases, of which one is configured with the slot of another."""
    with fresh_databases(postgres, *NAMES) as databases, ExitStack() as stack:
        made = Fleet(tmp_path_factory.mktemp("fleet"), databases)
        with databases["north"].connect() as connection:
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')",
                (taken := f"{databases['west'].slot}_taken",),
            )
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


@pytest.mark.parametrize("part", ["east", "forker", "applier"])
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
    with database.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = %s",
            (database.slot,),
        )
        connection.execute("SELECT pg_drop_replication_slot(%s)", (database.slot,))
    os.kill(fleet.child("north"), signal.SIGCONT)
    fleet.until(lambda: fleet.status()["north"]["ingest"]["exit_code"] == 7, "the slot is lost")
    assert fleet.status()["north"]["state"] == "lost"
    fleet.insert("east", "west", "north")
    fleet.until(lambda: fleet.is_equal("east", "west"), "the others go on")
    recreated = fleet.command("north", "slot", "recreate", "--confirm", database.slot)
    assert recreated.returncode == 0, recreated.stderr
    fleet.process.send_signal(signal.SIGHUP)
    fleet.until(lambda: fleet.status()["north"]["ingest"]["running"], "its ingest runs again")
    repaired = fleet.command("north", "verify", "--repair")
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    fleet.until(lambda: fleet.is_equal("north"), "no row of the gap is missing")


def test_one_status_shows_all_pipelines_and_ends_with_the_code_of_the_worst(fleet: Fleet) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluice", "status", "--fleet", str(fleet.folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
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
    with fleet.databases["east"].connect() as connection:
        active = connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = ANY(%s)",
            ([one.slot for one in fleet.databases.values()],),
        ).fetchone()
    assert active == (0,)


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
        if fleet.process.poll() is None:
            fleet.process.kill()
        fleet.guard.dismiss()
