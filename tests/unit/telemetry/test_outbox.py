"""Whoever hands something to an outbox neither waits nor fails, whatever the receiver does."""

import threading
import time
from collections import Counter
from collections.abc import Sequence

from sluice.telemetry.outbox import NotTaken, Outbox
from tests.support.pipeline import wait_until


class _Receiver:
    def __init__(self) -> None:
        self.taken: list[int] = []
        self.refuses = False
        self.open = threading.Event()
        self.open.set()
        self.counts: Counter[str] = Counter()

    def send(self, batch: Sequence[int]) -> None:
        self.open.wait(30)
        if self.refuses:
            raise NotTaken("it refuses")
        self.taken += batch

    def counted(self, outcome: str, items: int) -> None:
        self.counts[outcome] += items


def test_what_is_put_in_arrives_in_order_by_the_end() -> None:
    receiver = _Receiver()
    outbox = Outbox(receiver.send, to="test", counted=receiver.counted)
    for item in range(1000):
        outbox.put(item)
    outbox.close(seconds=10)
    assert receiver.taken == list(range(1000))
    assert receiver.counts == {"sent": 1000}


def test_a_receiver_that_does_not_answer_costs_nobody_a_wait_and_what_overflows_is_counted() -> None:
    receiver = _Receiver()
    receiver.open.clear()
    outbox = Outbox(receiver.send, to="test", counted=receiver.counted, limit=10, at_once=5)
    outbox.put(0)
    began = time.monotonic()
    for item in range(1, 1000):
        outbox.put(item)
    outbox.close(seconds=0.2)
    assert time.monotonic() - began < 5
    assert receiver.counts["dropped"] >= 980
    receiver.open.set()
    wait_until(lambda: receiver.counts.total() == 1000, what="the rest arrives", timeout=10)
    assert receiver.counts["sent"] == len(receiver.taken)


def test_a_receiver_that_refuses_loses_what_it_was_sent_and_gets_what_comes_later() -> None:
    receiver = _Receiver()
    receiver.refuses = True
    outbox = Outbox(receiver.send, to="test", counted=receiver.counted, weight=lambda item: item)
    outbox.put(3)
    wait_until(lambda: receiver.counts["dropped"] == 3, what="it is dropped", timeout=10)
    receiver.refuses = False
    outbox.put(4)
    outbox.close(seconds=10)
    assert (receiver.taken, receiver.counts) == ([4], {"dropped": 3, "sent": 4})


def test_what_is_to_be_sent_again_comes_before_what_was_put_in_later() -> None:
    receiver, tried = _Receiver(), []

    def send(batch: Sequence[int]) -> None:
        tried.append(list(batch))
        if len(tried) < 3:
            raise NotTaken("not yet")
        receiver.send(batch)

    outbox = Outbox(send, to="test", counted=receiver.counted, pauses=(0.01, 0.01), at_once=1)
    outbox.put(1)
    outbox.put(2)
    wait_until(lambda: receiver.taken == [1, 2], what="both arrive", timeout=10)
    outbox.close(seconds=5)
    assert tried == [[1], [1], [1], [2]]


def test_an_error_of_ours_is_counted_and_ends_nothing() -> None:
    receiver = _Receiver()

    def send(batch: Sequence[int]) -> None:
        if 1 in batch:
            raise ValueError("a bug")
        receiver.send(batch)

    outbox = Outbox(send, to="test", counted=receiver.counted, at_once=1)
    outbox.put(1)
    outbox.put(2)
    outbox.close(seconds=10)
    assert (receiver.taken, receiver.counts) == ([2], {"dropped": 1, "sent": 1})
