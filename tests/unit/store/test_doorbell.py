"""A ring is heard at once by who works on the same place of this machine, and by nobody else; nobody needs it."""

import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from sluice.store.doorbell import Doorbell, Listener, _address
from sluice.store.memory import MemoryStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets are Linux's")
PATIENCE = 10.0


class Heard:
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


def test_who_takes_over_from_a_frozen_process_hears_once_that_one_has_ended(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.store.doorbell.TAKEN_SECONDS", 0.01)
    frozen, successor = Heard(), Heard()
    first = Listener(store, "applier", frozen)
    second = Listener(store, "applier", successor)
    first.close()
    deadline = time.monotonic() + PATIENCE
    while not successor.numbers and time.monotonic() < deadline:
        Doorbell(store, "applier").ring(1)
        threading.Event().wait(0.01)
    second.close()
    assert successor.numbers
    assert not frozen.numbers


def test_who_waits_for_a_taken_bell_may_be_closed(store: MemoryStore, heard: Heard) -> None:
    waiting = Listener(store, "applier", Heard())
    waiting.close()
    assert not waiting._thread.is_alive()
