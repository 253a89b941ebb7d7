"""Dagster and Airflow themselves run the sensor and the trigger: a run for a new boundary, which reads the lake as of
it, and after a restart they go on where they were.

Both are large, so they are in an environment of their own, which `make orchestrators` makes.
"""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice.contract import boundary
from sluice.contract.applied import time_text
from sluice.contract.boundary import BoundaryTable, LakeBoundary
from tests.support.pipeline import wait_until
from tools.local.ports import free_port

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / "build" / "orchestrators"
HERE = Path(__file__).parent / "orchestrators"
BEGAN = 1_800_000_000.0
PATIENCE_SECONDS = 900.0
ANOTHER_SECONDS = 60.0
"""Until another boundary comes, when the newest has no run."""
STOP_SECONDS = 60.0

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (ENVIRONMENT / ".done").exists(),
        reason="Dagster and Airflow are not in build/orchestrators; `make orchestrators` puts them there",
    ),
]


class _Lake:
    """A lake of one table, which gets a row and a boundary with each `write`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder / "lake", folder / "seen.jsonl"
        self.number = 0

    def write(self) -> dict[str, Any]:
        """What a run at this boundary has to see."""
        self.number += 1
        number, at = self.number, time_text(BEGAN + self.number)
        marker = CommitProperties(app_transactions=[Transaction("m", number)])
        table = self.folder / "public" / "orders"
        write_deltalake(str(table), pa.table({"id": [number]}), mode="append", commit_properties=marker)
        tables = (BoundaryTable("public", "orders", "public/orders", number - 1, "m", number),)
        made = LakeBoundary(number, "shop", "m", f"0/{number * 16:X}", number, at, at, at, 3600.0, tables, {})
        path = self.folder / boundary.key("shop", number)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".new")
        whole.write_bytes(made.encode())
        whole.rename(path)
        return {"lsn": made.lsn, "rows": number, "version": number - 1}

    def runs(self) -> list[dict[str, Any]]:
        """What the runs have seen, in order."""
        return list(map(json.loads, self.seen.read_text().splitlines())) if self.seen.exists() else []


@contextmanager
def _running(lake: _Lake, folder: Path, *command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the environment, with its children, until the end of the block."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DAGSTER", "PYTHON"))}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [str(ENVIRONMENT / "bin" / command[0]), *command[1:]],
            env={
                **plain,
                "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "lake"),
                "THE_LAKE": str(lake.folder),
                "SEEN": str(lake.seen),
                **variables,
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its children
        process.wait()


def _wait(
    seen: Callable[[], list[dict[str, Any]]],
    process: subprocess.Popen[bytes],
    folder: Path,
    wanted: list[dict[str, Any]],
) -> None:
    def there() -> bool:
        assert process.poll() is None, (folder / "log").read_text(errors="replace")[-4000:]
        return wanted[-1] in seen()

    try:
        wait_until(there, what=f"a run at {wanted[-1]['lsn']}", timeout=PATIENCE_SECONDS)
    except AssertionError as error:
        raise AssertionError((folder / "log").read_text(errors="replace")[-6000:]) from error


def _go_on_after_a_restart(lake: _Lake, folder: Path, *command: str, **variables: str) -> list[dict[str, Any]]:
    """Two boundaries, a stop, two more, and a start. Returns what the runs had to see."""
    wanted = [lake.write()]
    with _running(lake, folder, *command, **variables) as process:
        _wait(lake.runs, process, folder, wanted)
        wanted.append(lake.write())
        _wait(lake.runs, process, folder, wanted)
    wanted += [lake.write(), lake.write()]
    with _running(lake, folder, *command, **variables) as process:
        _wait(lake.runs, process, folder, wanted)
    return wanted


@pytest.mark.parametrize("each", ["0", "1"])
def test_a_sensor_of_dagster_asks_for_a_run_at_each_new_boundary(tmp_path: Path, each: str) -> None:
    lake, home = _Lake(tmp_path), tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    command = ("dagster-daemon", "run", "-f", str(HERE / "dagster_definitions.py"))
    wanted = _go_on_after_a_restart(lake, tmp_path, *command, DAGSTER_HOME=str(home), EACH=each)
    if each == "0":
        del wanted[2]  # the newest boundary alone, once it looks again
    assert sorted(lake.runs(), key=lambda run: run["rows"]) == wanted


def _airflow(lake: _Lake, folder: Path, **more: str) -> dict[str, str]:
    """The variables of an Airflow whose database has the DAG of the lake."""
    home, port = folder / "home", free_port()
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "orders.py").write_text((HERE / "airflow_dag.py").read_text())
    variables = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of a test alone" * 5,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # 5 s are too few for a busy machine
        **more,
    }
    for command in ("db migrate", "dags reserialize"):
        with _running(lake, folder, "airflow", *command.split(), **variables) as process:
            assert process.wait(PATIENCE_SECONDS) == 0, (folder / "log").read_text(errors="replace")[-4000:]
    return variables


def test_a_trigger_of_airflow_fires_for_each_new_boundary_and_keeps_its_place(tmp_path: Path) -> None:
    """Without a scheduler: the triggerer alone makes the events of an asset, by which a scheduler begins runs."""
    lake = _Lake(tmp_path)

    def seen() -> list[dict[str, Any]]:
        database = (tmp_path / "home" / "airflow.db").as_uri() + "?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as connection:
            found = connection.execute("SELECT extra FROM asset_event ORDER BY id").fetchall()
        said = [json.loads(extra)["payload"] for (extra,) in found]
        return [{"lsn": one["lsn"], "rows": one["number"], "version": one["versions"]["public.orders"]} for one in said]

    wanted = [lake.write()]
    variables = _airflow(lake, tmp_path)
    with _running(lake, tmp_path, "airflow", "triggerer", **variables) as process:
        _wait(seen, process, tmp_path, wanted)
        wanted.append(lake.write())
        _wait(seen, process, tmp_path, wanted)
    wanted.append({**lake.write(), **lake.write()})
    with _running(lake, tmp_path, "airflow", "triggerer", **variables) as process:
        _wait(seen, process, tmp_path, wanted)
    assert seen() == wanted


@pytest.mark.parametrize("each", ["0", "1"])
def test_a_dag_of_airflow_runs_its_task_at_the_boundaries_that_came(tmp_path: Path, each: str) -> None:
    """All of Airflow: the scheduler begins runs by the events of the trigger, and a worker runs their task. An event
    that comes while the scheduler begins a run is part of the next run: it waits for another event.
    """
    lake = _Lake(tmp_path)
    variables = _airflow(lake, tmp_path, EACH=each)
    wanted = [lake.write()]
    with _running(lake, tmp_path, "airflow", "standalone", **variables) as process:
        _wait(lake.runs, process, tmp_path, wanted)
        wanted.append(lake.write())
        _wait(lake.runs, process, tmp_path, wanted)
    wanted += [lake.write(), lake.write()]

    def came() -> bool:
        """With each, all of them; else the newest, which may be later by then."""
        seen = lake.runs()
        return all(run in seen for run in wanted) if each == "1" else seen[-1]["rows"] >= wanted[-1]["rows"]

    later: list[dict[str, Any]] = []
    with _running(lake, tmp_path, "airflow", "standalone", **variables) as process:
        until = time.monotonic() + PATIENCE_SECONDS
        while not came():
            assert process.poll() is None, (tmp_path / "log").read_text(errors="replace")[-4000:]
            assert time.monotonic() < until, (tmp_path / "log").read_text(errors="replace")[-6000:]
            with suppress(AssertionError):
                wait_until(came, what="a run", timeout=ANOTHER_SECONDS)
                break
            later.append(lake.write())
    seen = lake.runs()
    assert [run for run in wanted[:2] if run not in seen] == []
    assert [run for run in seen if run not in [*wanted, *later]] == [], "a task read another boundary than it was given"
