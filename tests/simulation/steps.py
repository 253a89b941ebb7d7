"""What threads, clocks and a store that may be away are in a history: steps that somebody decides to take.

Nothing here waits. Work that the product hands to a thread stays in a queue until the schedule takes a step of it,
or until somebody needs its result, who then waits for it: that is the same as taking the step. A pause lets the
store come back.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sluice.errors import StoreUnavailable
from sluice.ingest.circuit_breaker import CircuitBreaker
from sluice.store.base import checked_key
from sluice.store.memory import MemoryStore, named

_PATIENCE = 100
_checked_key = lru_cache(1000)(checked_key)


class Crash(BaseException):
    """The process ends here."""


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.monotonic_s = 0.0

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.monotonic_s += seconds

    def time(self) -> float:
        return self.now.timestamp()

    def monotonic(self) -> float:
        return self.monotonic_s

    def sleep(self, seconds: float) -> None:
        self.pass_seconds(seconds)


class Store(MemoryStore):
    """The in-memory store, which may be away for some calls, or be the last thing that a process asks."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        named(name).by_key.clear()
        self.away = 0
        """How many calls are not answered from now on."""
        self.loses_answers = False
        """Whether a write of those happens all the same."""
        self.crash_in = 0
        """The process ends in this write, counted from 1; 0: in none."""

    def get(self, key: str) -> bytes:
        self._ask(key)
        return super().get(key)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._write(key, lambda: super(Store, self).put(key, data))

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._write(key, lambda: super(Store, self).create(key, data))

    def list(self, prefix: str, *, after: str = "") -> Any:
        self._ask(prefix)
        return super().list(prefix, after=after)

    def _full(self, key: str) -> str:
        return _checked_key(key)

    def _ask(self, key: str) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable(f"no answer about {key}")

    def _write(self, key: str, write: Callable[[], None]) -> None:
        crashes = self.crash_in == 1
        self.crash_in = max(0, self.crash_in - 1)
        if self.away or crashes:
            if self.loses_answers:
                write()
            if crashes:
                raise Crash
            self._ask(key)
        write()


class Stop:
    """The event that ends a process, which is never set: waiting for it is a pause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        self._clock.pass_seconds(seconds)
        return False

    def is_set(self) -> bool:
        return False


class Breaker(CircuitBreaker):
    """That of one connection."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(on_break=lambda _error: None)
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        self._clock.pass_seconds(seconds)
        return self.error is not None


class StepFuture:
    """The result of a step, like `concurrent.futures.Future` and without its locks. Whoever needs it takes the step."""

    def __init__(self, steps: "Steps", work: Callable[[], Any]) -> None:
        self._steps = steps
        self._work = work
        self._done = False
        self._found: Any = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        if not self._done:
            self._steps.waited()
        if not self._done:
            self._steps.take(self)
        assert self._done
        if self._error is not None:
            raise self._error
        return self._found

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        assert not self._done
        self._callbacks.append(callback)

    def work(self) -> None:
        """The step itself."""
        try:
            self._found = self._work()
        except Exception as error:  # noqa: BLE001 - its reader's
            self._error = error
        self._done = True
        for callback in self._callbacks:
            callback(self)


class Steps:
    """An executor whose work is done step by step; `in_order`: one after the other. `waited` is called when somebody
    waits for a result.
    """

    def __init__(self, waited: Callable[[], None], *, in_order: bool = False) -> None:
        self.waiting: list[StepFuture] = []
        self.waited = waited
        self.running = False
        """Whether a step is being taken."""
        self._in_order = in_order

    def submit(self, work: Callable[[], Any]) -> StepFuture:
        self.waiting.append(StepFuture(self, work))
        return self.waiting[-1]

    def take(self, future: StepFuture) -> None:
        while self._in_order and self.waiting[0] is not future:
            self.take(self.waiting[0])
        self.waiting.remove(future)
        assert not self.running
        self.running = True
        try:
            future.work()
        finally:
            self.running = False


class Moment:
    """A condition that somebody waits for. `pass_on` lets others come to it."""

    def __init__(self, pass_on: Callable[[], None]) -> None:
        self._pass_on = pass_on

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        pass

    def wait_for(self, holds: Callable[[], bool]) -> None:
        for _ in range(_PATIENCE):
            if holds():
                return
            self._pass_on()
        raise AssertionError("somebody waits for ever")


class Permits:
    """As many as anybody asks for: the schedule bounds what is under way."""

    def acquire(self, *, blocking: bool = True) -> bool:
        return blocking or True

    def release(self) -> None:
        pass
