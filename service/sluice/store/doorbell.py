"""Tells a process of this machine at once that an object it waits for is in the store, so that it need not ask often.

Invariant: a hint and nothing else. Nobody relies on a ring: it may be lost, come twice, or come from anybody on this
machine, and the store alone says what is there. So whoever waits also looks by himself now and then. It is a datagram
to an abstract Unix socket, whose name is made of the place: it leaves no file, crosses no network namespace (containers
of one pod hear each other, machines and pods do not), and costs microseconds. Where the system has none, nobody rings.
"""

import hashlib
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from sluice.store.base import ObjectStore

Party = Literal["ingest", "applier"]
"""Who waits: ingest for requests of operators, the applier for manifest entries."""
_SIZE = struct.calcsize("<Q")
_IS_THERE = sys.platform == "linux"
TAKEN_SECONDS = 5.0
"""Between two attempts to listen while another process does."""


class Doorbell:
    """Rings at the `party` that works on `store`, a pipeline's own prefix. Thread-safe."""

    def __init__(self, store: ObjectStore, party: Party) -> None:
        self._address = _address(store, party)

    def ring(self, number: int = 0) -> None:
        """Says that everything through object `number` is there, where objects are numbered. Returns at once, whether
        somebody hears it or not.
        """
        if not _IS_THERE:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell, suppress(OSError):
            # Nobody may be there, or he has rings enough that he has not looked at yet.
            bell.settimeout(0)
            bell.sendto(struct.pack("<Q", number), self._address)


class Listener:
    """Calls `heard`, with the number, for rings at the `party` that works on `store`, from a thread of its own, until
    `close`. Where another process hears them already, it waits until that one is gone.
    """

    def __init__(self, store: ObjectStore, party: Party, heard: Callable[[int], None]) -> None:
        self._heard = heard
        self._address = _address(store, party)
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._socket = _bound(self._address) if _IS_THERE else None
        self._thread = threading.Thread(target=self._listen, name="doorbell", daemon=True)
        if _IS_THERE:
            self._thread.start()

    def close(self) -> None:
        """Hears nothing any more. The next process may listen at once."""
        with self._lock:
            self._closing.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RD)
        if _IS_THERE:
            self._thread.join()

    def _listen(self) -> None:
        while (bell := self._bell()) is None:
            if self._closing.wait(TAKEN_SECONDS):
                return
        with bell:
            while not self._closing.is_set():
                said = bell.recv(_SIZE + 1)
                if len(said) == _SIZE and not self._closing.is_set():
                    self._heard(struct.unpack("<Q", said)[0])

    def _bell(self) -> socket.socket | None:
        """None while another process has the name: one that was replaced may be frozen, and keeps it until it ends."""
        with self._lock:
            if self._socket is None and not self._closing.is_set():
                self._socket = _bound(self._address)
            return self._socket


def _address(store: ObjectStore, party: Party) -> bytes:
    place = hashlib.sha256(f"{store.describe()}\n{party}".encode()).hexdigest()
    return f"\0sluice-{place[:32]}".encode()


def _bound(address: bytes) -> socket.socket | None:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(address)
    except OSError:
        made.close()
        return None
    return made
