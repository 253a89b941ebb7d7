"""A job beside the windows ends its future whatever it raises, and the next one runs."""

import threading
from concurrent.futures import wait

import pytest

from sluice_spark.beside import Beside


@pytest.mark.parametrize("raised", [OSError("away"), SystemExit(1)])
def test_a_job_that_raises_ends_its_future_and_the_next_one_runs(raised: BaseException) -> None:
    beside: Beside[int] = Beside("jobs")

    def fails() -> int:
        raise raised

    failed, done = beside.begin(fails), beside.begin(lambda: 7)
    beside.close(done, seconds=10.0)
    assert failed.exception(timeout=0) is raised
    assert done.result(timeout=0) == 7


def test_a_close_waits_no_longer_than_it_was_asked_to() -> None:
    beside, goes_on = Beside[bool]("jobs"), threading.Event()
    waits = beside.begin(lambda: goes_on.wait(30))
    beside.close(waits, seconds=0.05)
    assert not waits.done()
    goes_on.set()
    assert not wait([waits], timeout=10).not_done
