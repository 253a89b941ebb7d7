"""Several calls of a store at a time, and one that the store may have repeated.

Invariant: whoever leaves early, by an error, an interrupt or the end of the process, waits for no call that is under
way: a store that hangs answers after a minute. An executor as a context waits for them, and so does the end of a
process that has made one.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from sluice.errors import ObjectExists
from sluice.store.base import ObjectStore

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def create_named(store: ObjectStore, key: str, data: bytes) -> None:
    """Creates an object of which nobody else knows the name: one that is there already is a first attempt of the store
    itself, whose answer was lost. Raises StoreRefused, StoreUnavailable.
    """
    with suppress(ObjectExists):
        store.create(key, data)


def together(call: Callable[[Item], Answer], items: Iterable[Item], *, threads: int) -> Iterator[Answer]:
    """`call` of each of `items`, by so many threads; the answers in the order of the items. Raises what the first
    of them raises.
    """
    jobs: deque[tuple[Future[Answer], Item]] = deque((Future(), item) for item in items)
    answers = deque(answer for answer, _ in jobs)

    def work() -> None:
        while True:
            try:
                answer, item = jobs.popleft()
            except IndexError:
                return
            try:
                answer.set_result(call(item))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
                answer.set_exception(error)

    for number in range(min(threads, len(answers))):
        threading.Thread(target=work, name=f"store-{number}", daemon=True).start()
    try:
        while answers:
            yield answers.popleft().result()
    finally:
        jobs.clear()
