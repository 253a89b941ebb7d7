"""What goes on beside a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Work = Callable[[threading.Event], None]


@contextmanager
def beside(*works: Work) -> Iterator[None]:
    """Each has a thread until the block ends, of which the event tells it. What one of them raises fails the test."""
    ended, failed = threading.Event(), list[BaseException]()

    def run(work: Work) -> None:
        try:
            work(ended)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
