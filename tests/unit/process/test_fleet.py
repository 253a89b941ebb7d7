"""A fleet and the processes of its pipelines, as stand-ins that end when the test lets them."""

import signal
import threading
from collections.abc import Iterator, Sequence

import pytest

from sluice.process.fleet.fleet import Fleet, FleetOptions
from sluice.process.fleet.member import Folder, Member
from sluice.process.pipeline import ApplierCommand
from tests.support.pipeline import wait_until

NAMES = ("east", "north", "west")


class Stand:
    """A process that hears signals, and ends by itself once `over` is set."""

    stdin = None

    def __init__(self, command: Sequence[str], over: threading.Event) -> None:
        self.command = command
        self.pid = 0
        self.heard: list[int] = []
        self._over = over

    def poll(self) -> int | None:
        return 0 if self._over.is_set() else None

    def wait(self) -> int:
        self._over.wait()
        return 0

    def send_signal(self, number: int, /) -> None:
        self.heard.append(number)


class Stands:
    def __init__(self) -> None:
        self.made: list[Stand] = []
        self.over = threading.Event()

    def launch(self, command: Sequence[str]) -> Stand:
        self.made.append(Stand(command, self.over))
        return self.made[-1]


@pytest.fixture
def stands() -> Iterator[Stands]:
    made = Stands()
    yield made
    made.over.set()


def folder(setting: str) -> Folder:
    members = (Member(name, f"/{name}.yaml", (name,), 60.0, "{}", {"source": setting}) for name in NAMES)
    return Folder({one.name: one for one in members}, {})


def test_a_stop_while_pipelines_are_replaced_stops_all_of_them_at_once_and_starts_none(stands: Stands) -> None:
    """Each may take `stop_timeout`, and one after the other they take longer than anybody waits."""
    applier = ApplierCommand(["true"], {})
    fleet = Fleet(lambda: folder("old"), FleetOptions("127.0.0.1:0", "", 1, applier, stands.launch))
    try:
        fleet._take(folder("old"))
        wait_until(lambda: len(stands.made) == len(NAMES), what="all ingests run")
        added = folder("new")
        added.members["zenith"] = Member("zenith", "/zenith.yaml", ("zenith",), 60.0, "{}", {})  # type: ignore[index]
        reloading = threading.Thread(target=fleet._take, args=(added,), daemon=True)
        reloading.start()
        wait_until(lambda: stands.made[0].heard == [signal.SIGTERM], what="the first one is replaced")
        fleet._stop(signal.SIGTERM)
        assert [one.heard for one in stands.made] == [[signal.SIGTERM]] * len(NAMES)
        stands.over.set()
        reloading.join(30)
        assert len(stands.made) == len(NAMES)
    finally:
        stands.over.set()
        fleet.close()


def test_pipelines_that_leave_are_asked_to_stop_at_once_however_many_they_are(stands: Stands) -> None:
    members = [Member(f"p{number}", f"/{number}.yaml", ("x",), 60.0, "{}", {}) for number in range(20)]
    applier = ApplierCommand(["true"], {})
    fleet = Fleet(lambda: folder("old"), FleetOptions("127.0.0.1:0", "", 1, applier, stands.launch))
    try:
        fleet._take(Folder({one.name: one for one in members}, {}))
        wait_until(lambda: len(stands.made) == len(members), what="all ingests run")
        leaving = threading.Thread(target=fleet._take, args=(Folder({}, {}),), daemon=True)
        leaving.start()
        wait_until(lambda: all(one.heard for one in stands.made), what="all are asked", timeout=10)
        stands.over.set()
        leaving.join(30)
    finally:
        stands.over.set()
        fleet.close()
