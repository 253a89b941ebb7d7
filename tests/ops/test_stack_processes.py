"""Who is signalled by the local stack's pid files, who is not, and what it says that is missing."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.local_stack import alive
from tests.support.pipeline import wait_until
from tools.local.binaries import LocalServerError
from tools.local.tools import HINT, tool
from tools.stack.layout import PORTS, Layout
from tools.stack.processes import Daemon, Launch, started

STOP = ((signal.SIGTERM, 0.2),)
STUBBORN = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    created = Daemon(tmp_path / "run" / "one.pid", log=tmp_path / "logs" / "one.log")
    yield created
    created.stop(())


@pytest.mark.parametrize("since", ["an earlier boot", "another time of this boot"])
def test_a_number_that_belongs_to_somebody_else_by_now_is_not_signalled(
    daemon: Daemon, tmp_path: Path, stranger: subprocess.Popen[bytes], since: str
) -> None:
    boot, _, ticks = str(started(stranger.pid)).rpartition(" ")
    noted = f"0000 {ticks}" if since == "an earlier boot" else f"{boot} {int(ticks) - 1}"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "one.pid").write_text(json.dumps({"pid": stranger.pid, "started": noted}))
    assert daemon.process is None
    assert daemon.stop(STOP) is None
    assert stranger.poll() is None
    assert not (tmp_path / "run" / "one.pid").exists()


def test_one_that_was_started_here_is_found_by_another_command_and_stopped_with_its_children(
    daemon: Daemon, tmp_path: Path
) -> None:
    daemon.start(Launch([sys.executable, "-c", STUBBORN]))
    wait_until(lambda: daemon.log_tail() != "", what="it runs", timeout=120)
    child = int(daemon.log_tail())
    known = daemon.process
    assert known is not None
    outcome = Daemon(tmp_path / "run" / "one.pid", log=tmp_path / "logs" / "one.log").stop(STOP)
    assert outcome is not None
    assert outcome.forced
    assert not alive(known.pid)
    assert not alive(child)
    assert daemon.last is None


def test_one_that_ended_by_itself_is_not_running(daemon: Daemon) -> None:
    daemon.start(Launch(["true"]))
    wait_until(lambda: daemon.process is None, what="it has ended", timeout=120)
    assert daemon.stop(STOP) is None


def test_a_folder_of_somebody_elses_is_neither_taken_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    layout = Layout(tmp_path, asked={})
    with pytest.raises(LocalServerError, match="STACK="):
        layout.establish()
    assert not layout.exists
    assert (tmp_path / "letter").exists()


def test_ports_stay_what_they_were_until_others_are_asked_for(tmp_path: Path) -> None:
    Layout(tmp_path / "stack", asked={"PG_PORT": "20001"}).establish()
    assert Layout(tmp_path / "stack", asked={}).ports == {**PORTS, "PG_PORT": 20001}
    assert Layout(tmp_path / "stack", asked={"PG_PORT": "20002"}).ports["PG_PORT"] == 20002


@pytest.mark.parametrize("asked", [{"PG_PORT": "no"}, {"PG_PORT": "70000"}, {"PG_PORT": "9187"}])
def test_a_port_that_cannot_be_is_refused_by_name(tmp_path: Path, asked: dict[str, str]) -> None:
    with pytest.raises(LocalServerError, match="PG_PORT"):
        Layout(tmp_path / "stack", asked=asked)


def test_two_commands_that_change_the_stack_do_not_meet(tmp_path: Path) -> None:
    with (
        Layout(tmp_path / "stack", asked={}).alone(),
        pytest.raises(LocalServerError, match="another command"),
        Layout(tmp_path / "stack", asked={}).alone(),
    ):
        raise AssertionError("both were let in")


def test_without_debian_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalServerError, match=HINT):
        tool("promtool", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
