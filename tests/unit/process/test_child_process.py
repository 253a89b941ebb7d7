"""The applier as a child: it is tried again or ends `up` with its code, and never outlives its parent."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.process.child_process import ChildProcess, RestartPolicy, executing, shell_status
from sluice.process.fleet.forks import Forks, possible
from tests.support.pipeline import wait_until

QUICK = RestartPolicy(pauses_seconds=(0.01,), lease_seconds=0.0)
FORGIVING = RestartPolicy(pauses_seconds=(0.01,), lease_seconds=600.0)
Start = Callable[..., tuple[ChildProcess, "queue.Queue[int]"]]

TURNS = """
import os, pathlib, sys
log = pathlib.Path(os.environ["TURNS"])
turn = len(log.read_text()) if log.exists() else 0
log.write_text("x" * (turn + 1))
codes = [int(code) for code in os.environ["CODES"].split(",")]
code = codes[min(turn, len(codes) - 1)]
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""


FORKER = [
    sys.executable,
    "-c",
    (
        "import sys; from sluice import signals; from sluice.process.fleet.forks import serve\n"
        "program, = serve(int(sys.argv[1])); signals.arm().stand_down(); exec(program)"
    ),
]
"""A program that becomes each program that it is asked for."""


@pytest.fixture(
    params=["executed", pytest.param("forked", marks=pytest.mark.skipif(not possible(), reason="no pidfd"))]
)
def how(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def start(tmp_path: Path, how: str) -> Iterator[Start]:
    started: list[ChildProcess] = []
    forks: list[Forks] = []

    def start(
        program: str, *, policy: RestartPolicy = QUICK, **environ: str
    ) -> tuple[ChildProcess, "queue.Queue[int]"]:
        ends: queue.Queue[int] = queue.Queue()
        environment = {**os.environ, "TURNS": str(tmp_path / "turns"), **environ}
        if how == "executed":
            command, launch = [sys.executable, "-c", program], executing(environment)
        else:
            forks.append(Forks(FORKER, environment))
            command, launch = [program], forks[-1].launch
        process = ChildProcess(command, launch=launch, on_end=ends.put, policy=policy)
        started.append(process)
        process.start()
        return process, ends

    yield start
    for process in started:
        process.stop(timeout_seconds=120)
    for one in forks:
        one.close()


def test_what_may_pass_is_tried_again_and_what_may_not_ends_with_its_code(start: Start) -> None:
    process, ends = start(TURNS, CODES="75,-9,75,-15,6")
    assert ends.get(timeout=120) == 6
    assert process.restarts == 4
    assert not process.running


@pytest.mark.parametrize("code", [0, 1, 8])
def test_any_other_end_is_final(start: Start, code: int) -> None:
    process, ends = start(TURNS, CODES=str(code))
    assert ends.get(timeout=120) == code
    assert process.restarts == 0


def test_a_lease_that_a_killed_applier_left_behind_is_waited_for(start: Start) -> None:
    process, ends = start(TURNS, policy=FORGIVING, CODES="-9,8,8,3")
    assert ends.get(timeout=120) == 3
    assert process.restarts == 3


def test_stop_lets_the_child_finish_and_starts_no_other(start: Start, tmp_path: Path) -> None:
    ready, done = tmp_path / "ready", tmp_path / "done"
    os.mkfifo(ready)
    program = f"""
import pathlib, signal, sys
def finish(*_):
    pathlib.Path({str(done)!r}).write_text("merged")
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
pathlib.Path({str(ready)!r}).write_text("ready")
while True:
    signal.pause()
"""
    process, ends = start(program)
    assert ready.read_text() == "ready"
    process.stop(timeout_seconds=120)
    assert done.read_text() == "merged"
    assert not process.running
    assert ends.empty()


def test_a_child_that_does_not_listen_is_killed_in_the_end(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    program = (
        "import pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).write_text('x')\nwhile True: signal.pause()"
    )
    process, _ = start(program)
    ready.read_text()
    process.stop(timeout_seconds=0.2)
    assert not process.running


def test_what_the_child_prints_never_reaches_our_stdout(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    _, ends = start("print('noise')")
    assert ends.get(timeout=120) == 0
    assert capfd.readouterr() == ("", "noise\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_parent_killed_at_once_takes_its_child_along(tmp_path: Path, how: str) -> None:
    ended = tmp_path / "ended"
    os.mkfifo(ended)
    launch = "executing(os.environ)" if how == "executed" else f"Forks({FORKER!r}, os.environ).launch"
    child = (
        f"import os, signal\nfifo = os.open({str(ended)!r}, os.O_WRONLY)\nos.write(fifo, "
        "str(os.getpid()).encode())\nsignal.pause()"
    )
    parent = f"""
import os, signal, sys
from sluice.process.child_process import ChildProcess, executing
from sluice.process.fleet.forks import Forks
command = [sys.executable, "-c", {child!r}] if {how == "executed"} else [{child!r}]
ChildProcess(command, launch={launch}, on_end=print).start()
signal.pause()
"""
    running = subprocess.Popen([sys.executable, "-c", parent], cwd=Path(__file__).parents[3])
    reader = ended.open()
    pid = int(os.read(reader.fileno(), 20))
    running.kill()
    running.wait()
    watchdog = threading.Timer(20, lambda: _kill(pid))
    watchdog.start()
    assert os.read(reader.fileno(), 1) == b"", "the pipe closes when the child is gone"
    assert watchdog.is_alive()
    watchdog.cancel()
    reader.close()


def test_a_signal_is_reported_as_shells_report_it() -> None:
    assert (shell_status(-9), shell_status(6)) == (137, 6)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_was_never_started_can_be_stopped() -> None:
    process = ChildProcess([sys.executable, "-c", ""], launch=executing({}), on_end=lambda _code: None)
    process.stop(timeout_seconds=0.0)
    assert not process.running


def test_each_child_reads_what_there_is_and_what_changed_later(tmp_path: Path) -> None:
    heard, word = tmp_path / "heard", [b"first\n"]
    program = "import pathlib, sys\nfor line in sys.stdin:\n    open(sys.argv[1], 'a').write(line)"
    process = ChildProcess(
        [sys.executable, "-c", program, str(heard)],
        launch=executing(os.environ, fed=True),
        on_end=print,
        policy=QUICK,
        feed=lambda: word[0],
    )
    process.start()
    try:
        wait_until(lambda: heard.exists() and heard.read_text() == "first\n", what="the first word")
        word[0] = b"second\n"
        process.feed_again()
        wait_until(lambda: heard.read_text() == "first\nsecond\n", what="the second word")
    finally:
        process.stop(timeout_seconds=30)


@pytest.mark.parametrize("missing", [(os, "pidfd_open"), (signal, "pidfd_send_signal")], ids=["open", "send"])
def test_children_are_no_forks_where_python_does_not_name_processes(
    missing: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was built for old versions of Linux, whatever the kernel is."""
    monkeypatch.delattr(*missing, raising=False)
    assert not possible()
