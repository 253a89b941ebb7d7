"""A ring is heard at once by who works on the same place of this machine, and by nobody else; nobody needs it."""

import socket
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from sluice.store.doorbell import Doorbell, Listener, _address
from sluice.store.memory import MemoryStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets are Linux's")
PATIENCE = 10.0


class Heard:
    """What was heard, and the wait for it."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._changed = threading.Condition()

    def __call__(self, number: int) -> None:
        with self._changed:
            self.numbers.append(number)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: number in self.numbers, PATIENCE)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


@pytest.fixture
def heard(store: MemoryStore) -> Iterator[Heard]:
    heard = Heard()
    listener = Listener(store, "applier", heard)
    yield heard
    listener.close()


def test_a_ring_is_heard_with_its_number_by_who_works_on_that_place(store: MemoryStore, heard: Heard) -> None:
    Doorbell(MemoryStore(uuid.uuid4().hex), "applier").ring(1)
    Doorbell(store, "ingest").ring(2)
    Doorbell(store, "applier").ring(2**40)
    heard.wait_for(2**40)
    assert heard.numbers == [2**40]


def test_a_ring_that_nobody_hears_is_nobody_s_error(store: MemoryStore) -> None:
    Doorbell(store, "applier").ring(1)


def test_what_is_no_ring_is_not_heard(store: MemoryStore, heard: Heard) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for said in (b"", b"x", b"x" * 9, b"x" * 10_000):
            stranger.sendto(said, _address(store, "applier"))
    Doorbell(store, "applier").ring(5)
    heard.wait_for(5)
    assert heard.numbers == [5]


def test_a_second_process_of_a_place_hears_nothing_until_the_first_is_gone(store: MemoryStore) -> None:
    first, second, third = Heard(), Heard(), Heard()
    listener = Listener(store, "applier", first)
    beside = Listener(store, "applier", second)
    bell = Doorbell(store, "applier")
    bell.ring(1)
    first.wait_for(1)
    beside.close()
    listener.close()
    after = Listener(store, "applier", third)
    bell.ring(2)
    third.wait_for(2)
    after.close()
    assert (first.numbers, second.numbers, third.numbers) == ([1], [], [2])
