"""What a process does from the first moment of its start on: it keeps a SIGTERM, and refuses a second one by exit code
8, long before it has its slot, or has started Spark and taken its lease.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import assert_ended
from tests.support.extent import cases, slow
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders
from tools.local.ports import free_port


def signals_are_armed(pid: int) -> bool:
    """Whether the process catches SIGTERM: bit 15 of what the kernel says (proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))
    return False


@pytest.mark.parametrize(("arguments", "code"), [(("run",), 0), (("run", "--until-caught-up"), 75)])
def test_a_signal_in_the_first_moment_of_a_run_is_kept_and_ends_it_in_order(
    database: Database, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    orders(database)
    with Pipe(database, tmp_path).start(*arguments) as pipe:
        process = pipe.process
        assert process is not None
        while not signals_are_armed(process.pid):
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGTERM)
        assert not pipe.events(), "nothing was under way yet"
        assert process.wait(120) == code, pipe.log.read_text()


STANDS_DOWN = """
import os, signal, sys
from sluice import signals
armed = signals.arm()
if sys.argv[1] == "asked":
    os.kill(os.getpid(), signal.SIGTERM)  # nobody has had the time to hear it
print(armed.stand_down(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


BEGINS_AGAIN = """
import os, signal, threading
from sluice_spark import cli
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
os.kill(os.getpid(), signal.SIGTERM)
cli.begin_again(asked)
print("ended")
"""


def test_an_applier_that_begins_again_ends_instead_when_a_stop_was_asked_at_the_last_moment() -> None:
    ended = subprocess.run([sys.executable, "-c", BEGINS_AGAIN], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("ended\n", 0), ended.stderr


@pytest.mark.parametrize("asked", [True, False])
def test_standing_down_says_whether_a_stop_was_asked_and_lets_the_next_one_end_it(*, asked: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STANDS_DOWN, "asked" if asked else "not"], capture_output=True, text=True, timeout=120
    )
    assert (ended.stdout.strip(), ended.returncode) == (str(asked), -signal.SIGTERM), ended.stderr


def _listens(pipe: Pipe) -> bool:
    return any(event["event"] == "listening" for event in pipe.events())


@pytest.mark.parametrize("command", cases(["run", "apply"], quick=["apply"]))
def test_a_second_one_is_refused_as_one_while_the_first_still_starts(
    database: Database, tmp_path: Path, command: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert Pipe(database, tmp_path)("run", "--until-caught-up").returncode == 0
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    address = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Neither the source nor Java ever answers.
        nowhere = f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/{database.name}"
        with Pipe(database, tmp_path, dsn=nowhere) as first:
            places = {"SLUICE_TELEMETRY__LISTEN": address, "SLUICE_TELEMETRY__APPLY_LISTEN": address}
            first.environment |= {**places, "JAVA_HOME": str(tmp_path / "java")}
            first.start(command)
            first.wait(lambda: _listens(first))
            second = first(command)
    assert_ended(second, 8, address, "runs this pipeline")


@slow
@pytest.mark.parametrize(("command", "setting"), [(("run",), "listen"), (("apply", "--once"), "apply_listen")])
def test_another_program_at_the_address_is_not_taken_for_one(
    database: Database, tmp_path: Path, command: tuple[str, ...], setting: str
) -> None:
    """An applier says so before it starts Spark."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        ended = Pipe(database, tmp_path)(*command, **{f"SLUICE_TELEMETRY__{setting.upper()}": address})
    assert_ended(ended, 2, f"telemetry.{setting}")
