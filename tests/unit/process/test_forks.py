"""Children that are forks of one process: real processes, each with an exit code and signals of its own."""

import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.cli.fleet_ingest import FORK
from sluice.process.fleet.forks import Forked, Forks, possible
from tests.support.pipeline import wait_until

pytestmark = pytest.mark.skipif(not possible(), reason="this kernel names no process by a file descriptor")
FORKER = [
    sys.executable,
    "-c",
    "import sys; from sluice.process.fleet.forks import serve; exec(serve(int(sys.argv[1]))[0])",
]
WAITS = "import signal, time\nsignal.signal(15, lambda *_: sys.exit(5))\nopen({0!r}, 'w').close()\ntime.sleep(120)"


@pytest.fixture
def forks() -> Iterator[Forks]:
    made = Forks(FORKER, os.environ)
    yield made
    made.close()


def _waiting(forks: Forks, ready: Path) -> Forked:
    child = forks.launch([WAITS.format(str(ready))])
    wait_until(ready.exists, what="the child waits")
    return child


def _forker(child: Forked) -> int:
    return int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_each_child_has_its_own_arguments_session_and_code(forks: Forks, tmp_path: Path) -> None:
    program = "import os\nopen({0!r}, 'w').write(str((os.getsid(0) == os.getpid(), os.environ['HOME'])))\nsys.exit({1})"
    children = [forks.launch([program.format(str(tmp_path / str(code)), code)]) for code in range(5)]
    assert [child.wait() for child in children] == list(range(5))
    assert {(tmp_path / str(code)).read_text() for code in range(5)} == {str((True, os.environ["HOME"]))}
    assert len({child.pid for child in children}) == 5


def test_a_child_ends_by_the_signal_that_is_sent_and_one_that_has_ended_gets_none(forks: Forks, tmp_path: Path) -> None:
    child, killed = _waiting(forks, tmp_path / "a"), _waiting(forks, tmp_path / "b")
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    killed.send_signal(signal.SIGKILL)
    assert (child.wait(), killed.wait()) == (5, -signal.SIGKILL)
    child.send_signal(signal.SIGKILL)
    assert (child.poll(), killed.poll()) == (5, -signal.SIGKILL)


def test_children_of_a_forker_that_is_killed_end_count_as_killed_and_others_can_be_started(
    forks: Forks, tmp_path: Path
) -> None:
    child = _waiting(forks, tmp_path / "a")
    os.kill(_forker(child), signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        forks.launch(["sys.exit(7)"])
    assert forks.launch(["sys.exit(7)"]).wait() == 7


def test_a_signal_to_the_forker_that_asks_to_stop_is_for_its_children_alone(forks: Forks, tmp_path: Path) -> None:
    child = _waiting(forks, tmp_path / "a")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(_forker(child), number)
    assert forks.launch(["sys.exit(7)"]).wait() == 7
    assert child.poll() is None


def test_closing_ends_each_child(forks: Forks, tmp_path: Path) -> None:
    child = _waiting(forks, tmp_path / "a")
    forks.close()
    assert child.wait() == -signal.SIGKILL, "nobody could hear its code"


def test_a_fork_that_the_kernel_refuses_is_said_and_the_next_one_is_made(forks: Forks, tmp_path: Path) -> None:
    child = _waiting(forks, tmp_path / "a")
    descriptors = resource.prlimit(_forker(child), resource.RLIMIT_NOFILE)
    resource.prlimit(_forker(child), resource.RLIMIT_NOFILE, (0, descriptors[1]))
    with pytest.raises(OSError, match="Too many open files"):
        forks.launch(["sys.exit(7)"])
    resource.prlimit(_forker(child), resource.RLIMIT_NOFILE, descriptors)
    assert forks.launch(["sys.exit(7)"]).wait() == 7
    assert child.poll() is None


def test_a_child_that_begins_again_is_a_process_with_its_own_command_line() -> None:
    program = (
        "import os, sys\n"
        "from sluice.cli.fleet_ingest import FORK, forked\n"
        "if sys.argv[1] != FORK: sys.exit(int(sys.argv[1]))\n"
        "arguments = forked(sys.argv[2])\n"
        "assert sys.argv[1:] == arguments\n"
        "os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])"
    )
    forks = Forks([sys.executable, "-c", program, FORK], os.environ)
    try:
        assert [forks.launch([code]).wait() for code in ("7", "6")] == [7, 6]
    finally:
        forks.close()


@contextmanager
def _room_for(more: int) -> Iterator[None]:
    """This process may have so many more file descriptors."""
    numbers, limit = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limit[1]))
    try:
        while True:
            numbers.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for number in numbers[len(numbers) - more :] if more else ():
            os.close(number)
            numbers.remove(number)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for number in numbers:
            os.close(number)


@pytest.mark.parametrize("more", [0, 1])
def test_who_has_no_room_for_another_child_keeps_those_there_are(forks: Forks, tmp_path: Path, more: int) -> None:
    child = _waiting(forks, tmp_path / "a")
    with _room_for(more), pytest.raises(OSError, match="Too many open files"):
        forks.launch(["sys.exit(7)"])
    assert forks.launch(["sys.exit(7)"]).wait() == 7
    assert child.poll() is None


def test_a_child_is_waited_for_without_another_file_descriptor(forks: Forks, tmp_path: Path) -> None:
    child = _waiting(forks, tmp_path / "a")
    with _room_for(0):
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 5


def test_nobody_waits_for_ever_for_a_forker_that_is_frozen(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = _waiting(forks, tmp_path / "a")
    monkeypatch.setattr("sluice.process.fleet.forks.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("sluice.process.fleet.forks.CODE_SECONDS", 0.2)
    os.kill(_forker(child), signal.SIGSTOP)
    child.send_signal(signal.SIGKILL)
    ended = threading.Thread(target=child.wait, daemon=True)
    ended.start()
    ended.join(10)
    assert not ended.is_alive()
    assert child.poll() == -signal.SIGKILL

    def launch() -> None:
        with pytest.raises(ChildProcessError):
            forks.launch(["sys.exit(7)"])

    started = threading.Thread(target=launch, daemon=True)
    started.start()
    started.join(10)
    assert not started.is_alive()
    monkeypatch.undo()
    assert forks.launch(["sys.exit(7)"]).wait() == 7
