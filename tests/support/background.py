"""Work that goes on beside a test."""

import threading
from collections.abc import Callable
from typing import Self


class Hung(AssertionError):
    """Something that must end did not, within a bound that a busy machine meets."""


class Background:
    """Threads that work until the block ends, when `stopped` is set. Their errors are raised there and by `check`."""

    def __init__(self, *bodies: Callable[[], None], patience_seconds: float = 60) -> None:
        self.stopped = threading.Event()
        self._patience_seconds = patience_seconds
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(body,), daemon=True) for body in bodies]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join(self._patience_seconds)
            if thread.is_alive():
                raise Hung(f"{type(self).__name__} did not end")
        self.check()

    def check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised by who looks
            self._errors.append(error)


def beside(*works: Callable[[threading.Event], None]) -> Background:
    """Each work is told by an event when the block ends."""
    made: Background = Background(*(lambda work=work: work(made.stopped) for work in works))
    return made
