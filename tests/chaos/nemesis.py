"""What kills: every fault point the code has, and moments drawn from a seed."""

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.world import World, events
from tools.local.sluice import SluiceProcess

CRASHED = 137
"""The exit status that a fault point leaves with, as a shell shows kill -9."""
_POINT = re.compile(r'faults\.point\("([^"]+)"\)')
_REACHED_SECONDS = 180.0
_LOOK_SECONDS = 0.002


def points(package: str) -> list[str]:
    """The names of all fault points below `package`: one that is added is killed at without further
    ado.
    """
    root = Path(__file__).parents[2] / package
    return sorted({name for path in root.rglob("*.py") for name in _POINT.findall(path.read_text())})


def crash(process: SluiceProcess, *, at: str) -> None:
    try:
        status = process.wait(_REACHED_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"the fault point {at} was never reached:\n{process.log_tail(40)}") from None
    assert status == CRASHED, f"ended with {status} before the fault point {at}:\n{process.log_tail(40)}"


@dataclass(frozen=True)
class Moment:
    """After `count` of what `what` names have happened since the start of the process, and
    `seconds` more.
    """

    what: str
    count: int
    seconds: float

    def strike(self, world: World, start: Callable[[], SluiceProcess], *, alone: bool = False) -> None:
        """Starts a process and kills it when its moment has come; `alone` spares its children."""
        count = self._counter(world)
        process = start()
        deadline = time.monotonic() + _REACHED_SECONDS
        while count(process) < self.count:
            assert process.status is None, f"ended with status {process.status} before {self}:\n{process.log_tail(40)}"
            assert time.monotonic() < deadline, f"{self} never came:\n{process.log_tail(40)}"
            time.sleep(_LOOK_SECONDS)
        time.sleep(self.seconds)
        status = process.kill_alone() if alone else process.kill()
        assert status == -signal.SIGKILL, f"ended with status {status} by itself:\n{process.log_tail(40)}"

    def _counter(self, world: World) -> Callable[[SluiceProcess], int]:
        if self.what == "entries":
            before = world.spool.newest_seq
            return lambda _: world.spool.newest_seq - before
        if self.what == "acknowledgements":
            known = len(world.proxy.statuses)
            return lambda _: len({status.flush for status in world.proxy.statuses[known:]})
        if self.what == "windows":
            return lambda process: events(process).count("window applied")
        return lambda _: 0


def ingest_moment(choice: random.Random) -> Moment:
    """From the first moments of a start, through the first entries, to the middle of a steady
    stream.
    """
    what = choice.choice(["start", "entries", "acknowledgements"])
    most = {"start": 0, "entries": 12, "acknowledgements": 6}[what]
    return Moment(what, choice.randint(min(1, most), most), choice.uniform(0, 1.5 if what == "start" else 0.1))


def applier_moment(choice: random.Random) -> Moment:
    """Inside a later MERGE, most likely."""
    return Moment("windows", choice.randint(1, 4), choice.uniform(0, 1.0))
