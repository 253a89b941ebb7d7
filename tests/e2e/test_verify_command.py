"""`sluice verify` as people run it: the command as a process, a running pipeline, PostgreSQL and Spark.

The stream leaves out what another origin commits, so that source and lake differ on purpose, with rows of
every kind of difference, and neither side knows of it.
"""

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.contract import keys
from tests.support.compare import assert_equal
from tests.support.extent import FULL, slow
from tests.support.fleets import below, line_of
from tests.support.pipeline import QUICK_JAVA, new_pipeline, wait_until
from tests.support.sources import Database, fresh_database
from tools.local import jvm
from tools.local.postgres import PostgresServer
from tools.local.sluice import SluiceProcess

pytestmark = pytest.mark.timeout(900)
QUICK = {"JAVA_TOOL_OPTIONS": jvm.QUICK}
COMPARED = ("floats", "orders", "pairs")
INTERRUPT_SECONDS = 5.0
ORDERS = 30_000 if FULL else 3_000
SCHEMA = (
    "CREATE TABLE floats (id double precision PRIMARY KEY, v int)",
    "INSERT INTO floats VALUES (1.0, 1), ('Infinity', 2), (-0.0, 3), (0.1, 4), ('-Infinity', 5), ('NaN', 6)",
    "INSERT INTO floats VALUES (1e300, 7)",
    "CREATE TABLE bags (v text)",
    "ALTER TABLE bags REPLICA IDENTITY FULL",
    "INSERT INTO bags VALUES ('a'), ('b')",
    "CREATE TABLE orders (id int PRIMARY KEY, v text)",
    f"INSERT INTO orders SELECT i, 'v' || i FROM generate_series(1, {ORDERS}) i",
    "CREATE TABLE pairs (a int, b text, v int, PRIMARY KEY (b, a))",
    "INSERT INTO pairs SELECT i, 'b' || i, i FROM generate_series(1, 200) i",
    "CREATE TABLE worn (id int PRIMARY KEY, v bigint)",
    "INSERT INTO worn SELECT i, i FROM generate_series(1, 20) i",
)


class Scene:
    """A pipeline that runs, and people who compare its lake from a folder of their own. The first repair waits at
    `gate` until that file is there.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.gate, self.home = database, folder / "gate", folder / "home"
        self.pipeline = new_pipeline(
            database,
            folder,
            source={"origin": "none"},
            spool={"max_delay": "200ms"},
            apply={"poll": "200ms", "conf": QUICK_JAVA},
            tables={"public.worn": {"on_change": "stop"}},
        )
        self.home.mkdir()
        self.up: SluiceProcess

    def hidden(self, *statements: str) -> None:
        """Changes of another origin, which the stream leaves out."""
        with closing(self.database.connect()) as connection:
            connection.execute("SELECT pg_replication_origin_session_setup(%s)", (self.database.slot,))
            for statement in statements:
                connection.execute(statement.encode())

    def _started(self, words: tuple[str, ...], **how: Any) -> "subprocess.Popen[Any]":
        command = self.pipeline._command(("verify", *words))
        return subprocess.Popen(command, cwd=self.home, env={**os.environ, **QUICK}, **how)

    def verify(self, *words: str, timeout: float = 240) -> "subprocess.CompletedProcess[str]":
        with self.begun(*words) as command:
            out, err = command.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command.args, command.returncode, out, err)

    def begun(self, *words: str) -> "subprocess.Popen[str]":
        """The command as a shell starts it: Ctrl-C reaches its process group."""
        return self._started(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def typed(self, *words: str) -> tuple[int, str]:
        """Its exit code, and all that is on the terminal."""
        ours, theirs = pty.openpty()
        with self._started(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as command:
            os.close(theirs)
            shown = b""
            with suppress(OSError):  # Linux says so when no process has the terminal any more
                while more := os.read(ours, 65_536):
                    shown += more
        os.close(ours)
        return command.returncode, shown.decode(errors="replace")

    def states(self) -> dict[str, str]:
        return {one["table"]: one["state"] for one in self.pipeline.tables()}

    def wear(self) -> None:
        """One table is stale from then on."""
        if self.states()["worn"] != "stale":
            self.database.execute("ALTER TABLE worn ALTER v TYPE int USING (v / 2)::int")
            wait_until(lambda: self.states()["worn"] == "stale", what="the table is stale", processes=(self.up,))

    def requests(self) -> list[Path]:
        return sorted((self.pipeline.own_spool / keys.CONTROL).glob("*.json"))


@pytest.fixture(scope="module")
def scene(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with fresh_database(postgres) as database:
        database.execute(*SCHEMA, f"SELECT pg_replication_origin_create('{database.slot}')")
        scene = Scene(database, tmp_path_factory.mktemp("verify"))
        environment = {**QUICK, "SLUICE_FAULTS": f"repair.begun=hold:{scene.gate}@1"}
        try:
            with scene.pipeline.start("up", environment=environment) as scene.up:
                wait_until(lambda: set(scene.states().values()) == {"live"}, what="all is live", processes=(scene.up,))
                yield scene
        finally:
            database.execute(f"SELECT pg_replication_origin_drop('{database.slot}')")


def test_three_tables_are_found_equal_by_one_command_and_one_start_of_spark(scene: Scene) -> None:
    done = scene.verify("public.floats", "public.orders", "public.pairs", "--wait", "120", "--json")
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)["tables"]
    assert {one["table"]: one["outcome"] for one in tables} == dict.fromkeys(COMPARED, "equal")
    assert {one["table"]: one["rows"] for one in tables} == {"floats": 7, "orders": ORDERS, "pairs": 200}
    assert done.stderr.count("starting Spark") == 1
    assert list(scene.home.iterdir()) == [], "a command leaves nothing in the folder where it is given"


@slow
def test_a_repair_of_several_tables_keeps_rows_whose_keys_come_back_and_passes_others_by(scene: Scene) -> None:
    scene.wear()
    scene.hidden(
        "INSERT INTO bags VALUES ('without a key')",
        "UPDATE floats SET v = 10 WHERE id = 1.0",
        "UPDATE floats SET v = 30 WHERE id = 0.0",  # which equals -0.0
        "DELETE FROM floats WHERE id IN ('Infinity', '-Infinity', 1e300)",
        "INSERT INTO floats VALUES (2.5, 8)",
        "UPDATE orders SET v = 'other' WHERE id BETWEEN 100 AND 120",
        "DELETE FROM orders WHERE id = 7",
        "INSERT INTO orders VALUES (-7, 'new')",
        "UPDATE pairs SET a = a + 1000 WHERE a <= 3",
    )
    with scene.begun("--repair", "--json") as command:
        # The first table has been compared, and ingest has its request.
        wait_until(lambda: bool(scene.requests()), what="a repair is asked for", processes=(scene.up,))
        scene.hidden(
            "INSERT INTO floats VALUES ('Infinity', 20), (1e300, 70)",
            "DELETE FROM floats WHERE id = 2.5",
        )
        scene.gate.touch()
        out, err = command.communicate(timeout=240)
    tables = {one["table"]: one for one in json.loads(out)["tables"]}
    assert command.returncode == 4, err
    assert "public.bags has no key to repair its rows by" in err
    assert {name: one["outcome"] for name, one in tables.items()} == {
        **dict.fromkeys(COMPARED, "equal"),
        "bags": "different",
        "worn": "not compared",
    }
    assert {name: tables[name]["repaired"] for name in COMPARED} == {"floats": 6, "orders": 23, "pairs": 6}
    assert "sluice resync" in tables["worn"]["reason"]
    assert scene.requests() == []
    assert_equal(scene.database, COMPARED, lake_uri=scene.pipeline.lake_uri)


@slow
def test_a_repair_of_a_stale_table_is_refused_before_spark_starts(scene: Scene) -> None:
    scene.wear()
    done = scene.verify("public.orders", "public.worn", "--repair")
    assert done.returncode == 2
    assert "public.worn is stale and cannot be repaired" in done.stderr
    assert "`sluice resync public.worn`" in done.stderr
    assert "starting Spark" not in done.stderr


@slow
@pytest.mark.parametrize("hangs", [False, True], ids=["reads", "hangs"])
def test_ctrl_c_while_the_lake_is_read_ends_within_seconds_and_leaves_no_child(scene: Scene, hangs: bool) -> None:
    with scene.begun("public.orders") as command:
        began = time.monotonic()
        children: set[int] = set()
        try:
            while not any("pyspark.daemon" in line_of(pid) for pid in children):
                assert command.poll() is None, command.communicate()
                assert time.monotonic() - began < 120, [line_of(pid) for pid in children]
                children = set(below(command.pid))
            if hangs:
                for pid in children:
                    if "pyspark.daemon" not in line_of(pid):
                        os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            os.killpg(command.pid, signal.SIGINT)
            _, err = command.communicate(timeout=60)
            took = time.monotonic() - began
            assert (command.returncode, took < INTERRUPT_SECONDS) == (130, True), (took, err)
            _assert_gone(children, by=began + INTERRUPT_SECONDS)
        finally:
            _end(command, children)


@slow
def test_on_a_terminal_the_wait_for_an_ingest_that_stands_still_is_said_and_ends(scene: Scene) -> None:
    ingest = scene.up.pid
    os.kill(ingest, signal.SIGSTOP)
    try:
        code, shown = scene.typed("public.pairs", "--wait", "3")
    finally:
        os.kill(ingest, signal.SIGCONT)
    assert code == 75, shown
    assert "public.pairs: not compared: the source was read as of" in shown
    assert "in 3s ingest has come to" in shown
    assert shown.count("snapshot taken") == 1, "another attempt would only take as long again"
    assert shown.index("comparing") < shown.index("starting Spark")
    assert "WARN" not in shown.replace(f"Picked up JAVA_TOOL_OPTIONS: {QUICK['JAVA_TOOL_OPTIONS']}", "")


@slow
def test_continuous_comparison_goes_round_twice_and_ends_with_an_interrupt(scene: Scene) -> None:
    with scene.begun("--continuous", "--interval", "60s", "--log-format", "json") as command:
        rounds: dict[str, int] = {}
        assert command.stderr is not None
        for line in command.stderr:
            if '"table compared"' in line:
                said = json.loads(line)
                rounds[said["table"]] = rounds.get(said["table"], 0) + (said["outcome"] == "equal")
            assert "ended by" not in line
            if all(rounds.get(f"public.{name}", 0) >= 2 for name in COMPARED):
                break
        children = set(below(command.pid))
        began = time.monotonic()
        os.killpg(command.pid, signal.SIGINT)
        command.communicate(timeout=60)
        assert (command.returncode, time.monotonic() - began < INTERRUPT_SECONDS) == (130, True)
        _assert_gone(children, by=began + INTERRUPT_SECONDS)


@slow
def test_continuous_comparison_takes_up_a_target_that_is_added_while_it_runs(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a')")
    pipeline = new_pipeline(
        database, tmp_path, spool={"max_delay": "200ms"}, apply={"poll": "200ms", "conf": QUICK_JAVA}
    )

    def equal(process: SluiceProcess, table: str) -> bool:
        lines = [json.loads(line) for line in process.log.read_text().splitlines() if '"table compared"' in line]
        return any((line["table"], line["outcome"]) == (table, "equal") for line in lines)

    words = ("verify", "--continuous", "--interval", "60s", "--log-format", "json")
    with pipeline.start("up", environment=QUICK) as up:
        wait_until(lambda: [one["state"] for one in pipeline.tables()] == ["live"], what="it is live", processes=(up,))
        verify = pipeline.start(*words, environment=QUICK)
        with verify:
            wait_until(lambda: equal(verify, "public.orders"), what="it is compared", processes=(up, verify))
            up.stop()
            settings = yaml.safe_load(pipeline.config.read_text())
            targets = [{"kind": "mirror"}, {"kind": "history", "name": "past"}]
            pipeline.config.write_text(yaml.safe_dump({**settings, "tables": {"public.orders": {"targets": targets}}}))
            with pipeline.start("up", environment=QUICK) as again:
                wait_until(
                    lambda: equal(verify, "public.orders/past"),
                    what="the target is compared",
                    processes=(again, verify),
                    timeout=300,
                )


def _assert_gone(pids: set[int], *, by: float) -> None:
    while (left := [line for pid in pids if (line := line_of(pid))]) and time.monotonic() < by:
        time.sleep(0.05)
    assert left == []


def _end(command: "subprocess.Popen[str]", children: set[int]) -> None:
    for pid in (command.pid, *children):
        if line_of(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
