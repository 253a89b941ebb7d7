"""Each documented exit code, provoked for real: the command as a process, and what is wrong really
wrong.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from sluice.cli import exits
from sluice.contract import keys
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.support import canary, manifests
from tests.support.extent import slow
from tests.support.manifests import put
from tests.support.pgproxy import PgProxy, head_corrupted
from tests.support.pipeline import wait_until
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer
from tools.local.sluice import Pipeline

SLUICE = [sys.executable, "-m", "sluice"]
AWAY = f"postgresql://u:{canary.SECRET}@127.0.0.1:1/d?connect_timeout=2"


class Sluice(Pipeline):
    """The command line, with a source that nobody answers unless a test asks for something else."""

    def __init__(self, directory: Path, *, dsn: str = AWAY, slot: str = "sluice_shop") -> None:
        source = {"slot": slot, "publication": slot, "tables": ["public.*"]}
        super().__init__(directory, name="shop", dsn=dsn, settings={"source": source})

    @property
    def store(self) -> ObjectStore:
        return open_store(self.spool_uri, prefix="shop/", options={})

    def __call__(self, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return self.run(*arguments, environment=environ)


@pytest.fixture
def sluice(tmp_path: Path) -> Sluice:
    return Sluice(tmp_path)


@pytest.fixture
def connected(tmp_path: Path, database: Database) -> Sluice:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    return Sluice(tmp_path, dsn=database.dsn, slot=database.slot)


@pytest.fixture(scope="module")
def followed(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sluice, Database]]:
    """A pipeline that has caught up and ended."""
    with fresh_database(postgres) as database:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        sluice = Sluice(tmp_path_factory.mktemp("followed"), dsn=database.dsn, slot=database.slot)
        assert sluice("run", "--until-caught-up").returncode == 0
        yield sluice, database


def test_code_0_all_went_well(sluice: Sluice) -> None:
    assert sluice("config", "validate").returncode == 0


def test_code_1_the_server_sends_what_is_no_pgoutput(connected: Sluice, database: Database) -> None:
    assert connected("setup").returncode == 0
    database.execute("INSERT INTO orders VALUES (1)")
    with PgProxy(database.server.port) as proxy:
        proxy.change(head_corrupted, matches=lambda message: message.tag == "B")
        ended = connected("run", "--until-caught-up", SLUICE_SOURCE__DSN=proxy.dsn(dbname=database.name))
    assert ended.returncode == 1, ended.stderr
    assert "error: " in ended.stderr
    behind = "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = %s"
    assert database.one(behind, database.slot) == (True,), "nothing was acknowledged on its account"


def test_code_2_a_key_that_nobody_knows(sluice: Sluice) -> None:
    ended = sluice("config", "validate", SLUICE_SPOOL__MAX_DEALY="3s")
    assert (ended.returncode, "nearest: SLUICE_SPOOL__MAX_DELAY" in ended.stderr) == (2, True)


def test_code_3_preflight_finds_a_source_that_is_away(sluice: Sluice) -> None:
    ended = sluice("check", "--json")
    assert ended.returncode == 3
    assert any(finding["severity"] == "critical" for finding in json.loads(ended.stdout)["findings"])


def test_code_4_a_segment_is_missing(sluice: Sluice) -> None:
    log = ManifestLog.open(sluice.store, manifests.opened(), PipelineState())
    log.append(manifests.table("7"))
    put(log, manifests.changes(120), through_lsn=120)
    assert sluice("spool", "verify").returncode == 4


def test_code_5_the_source_does_not_answer(sluice: Sluice) -> None:
    assert sluice("setup").returncode == 5


def test_code_6_a_manifest_entry_was_changed(sluice: Sluice) -> None:
    log = ManifestLog.open(sluice.store, manifests.opened(), PipelineState())
    log.append(manifests.table("7"))
    sluice.store.put(keys.manifest_entry(1), sluice.store.get(keys.manifest_entry(1)) + b" ")
    assert sluice("spool", "ls").returncode == 6


@slow
def test_code_7_the_slot_of_a_pipeline_is_gone(connected: Sluice, database: Database) -> None:
    assert connected("run", "--until-caught-up").returncode == 0
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    for command in ("setup", "run --until-caught-up", "status --json", "check --json"):
        ended = connected(*command.split())
        assert (ended.returncode, "MISSING" in ended.stderr + ended.stdout) == (7, True), ended.stderr
    assert not database.all("SELECT FROM pg_replication_slots WHERE slot_name = %s", database.slot), "made again"
    found = {one["code"]: one["severity"] for one in json.loads(ended.stdout)["findings"]}
    assert (found["pipeline.lost"], "slot.missing" in found) == ("critical", False), "no run will create it"
    status = json.loads(connected("status", "--json").stdout)
    assert (status["state"], "slot.lost" in {problem["code"] for problem in status["problems"]}) == ("lost", True)


def test_code_8_somebody_else_streams_from_the_slot(connected: Sluice, database: Database) -> None:
    assert connected("setup").returncode == 0
    with closing(psycopg.connect(f"{database.dsn}?replication=database", autocommit=True)) as other:
        names = f"(proto_version '1', publication_names '{database.publication}')"
        other.pgconn.send_query(f"START_REPLICATION SLOT {database.slot} LOGICAL 0/0 {names}".encode())
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: database.one(active, database.slot) == (True,), what="it streams", timeout=30)
        assert connected("slot", "drop", "--confirm", database.slot).returncode == 8


def test_code_9_it_runs_and_a_table_needs_attention(connected: Sluice, database: Database) -> None:
    database.execute('CREATE TABLE refused (id int PRIMARY KEY, "_sluice_op" int)')
    with connected.start("run") as running:
        deadline = time.monotonic() + 90
        while (ended := connected("status", "--json")).returncode != 9:
            assert ended.returncode in (0, 10, 11), ended.stdout
            assert running.status is None
            assert time.monotonic() < deadline
        assert json.loads(ended.stdout)["state"] == "degraded"
    assert running.status == 0


def test_code_10_it_does_not_run(followed: tuple[Sluice, Database]) -> None:
    sluice, _ = followed
    ended = sluice("status", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (10, "stopped")


def test_code_11_nothing_was_received_yet(connected: Sluice) -> None:
    ended = connected("status", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (11, "new")


def test_code_12_nobody_can_say(sluice: Sluice) -> None:
    ManifestLog.open(sluice.store, manifests.opened(), PipelineState())
    ended = sluice("status", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (12, "unknown")


def test_code_13_a_table_would_be_read(connected: Sluice, database: Database) -> None:
    database.execute(f"CREATE PUBLICATION {database.publication} FOR TABLE orders")
    ended = connected("plan", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["tables"][0]["effect"]) == (13, "snapshot")


def test_code_14_a_table_would_stop(followed: tuple[Sluice, Database]) -> None:
    sluice, database = followed
    database.execute(f"ALTER PUBLICATION {database.publication} DROP TABLE orders")
    ended = sluice("plan", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["tables"][0]["effect"]) == (14, "stop")


def test_code_75_the_object_store_does_not_answer(sluice: Sluice) -> None:
    options = {"ENDPOINT": "http://127.0.0.1:1", "REGION": "x", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "canary"}
    given = {f"SLUICE_SPOOL__OPTIONS__AWS_{name}": value for name, value in options.items()}
    ended = sluice("spool", "ls", SLUICE_SPOOL__URI="s3://bucket", SLUICE_SPOOL__OPTIONS__ALLOW_HTTP="true", **given)
    assert ended.returncode == 75, ended.stderr


def test_code_130_somebody_pressed_ctrl_c(sluice: Sluice) -> None:
    # A shell that runs the tests in the background lets them, and all below them, ignore it.
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(
        [*SLUICE, "status", "--watch", "--json", "-c", str(sluice.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=heard,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(180) == 130


def test_code_141_nobody_reads_what_is_printed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*SLUICE, "config", "schema"], stdout=writing, check=False)
    os.close(writing)
    assert ended.returncode == 141


def test_every_documented_code_is_provoked_here() -> None:
    tested = {int(match[1]) for name in globals() if (match := re.match(r"test_code_(\d+)_", name))}
    assert tested == set(exits.MEANINGS)
