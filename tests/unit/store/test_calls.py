"""Several calls at a time, and how they are left."""

import sys
import threading

import pytest

from sluice.errors import StoreUnavailable
from sluice.store.calls import together
from tests.support import commands

_LEFT = """
import threading
from sluice.store.calls import together
begun = threading.Event()
def call(number):
    if number:
        begun.set()
        threading.Event().wait(60)
    begun.wait()
    raise ValueError
list(together(call, range(2), threads=2))
"""


def test_answers_come_in_the_order_of_what_was_asked_and_calls_run_side_by_side() -> None:
    side_by_side = threading.Barrier(3)

    def call(number: int) -> int:
        side_by_side.wait(30)
        return number * 2

    assert list(together(call, range(9), threads=3)) == [number * 2 for number in range(9)]
    assert list(together(call, [], threads=3)) == []


def test_behind_an_error_no_other_call_begins() -> None:
    called: list[int] = []
    left = threading.Event()

    def call(number: int) -> None:
        called.append(number)
        if number == 0:
            raise StoreUnavailable("away")
        left.wait(30)

    with pytest.raises(StoreUnavailable, match="away"):
        list(together(call, range(5), threads=1))
    left.set()
    for thread in threading.enumerate():
        if thread.name.startswith("store-"):
            thread.join(30)
    assert called in ([0], [0, 1])


def test_a_process_that_leaves_early_waits_for_no_call_that_is_under_way() -> None:
    ended = commands.ended(sys.executable, "-c", _LEFT)
    assert ended.returncode == 1
    assert "ValueError" in ended.stderr
