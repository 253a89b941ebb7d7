"""What is dear to make and serves one test after the other, until a test fails and may have left it
broken.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

import pytest

T = TypeVar("T")


class Reused(Generic[T]):
    """Makes one with `create` when it is first asked for, and another one after a test that failed:
    each failure is its own.
    """

    def __init__(self, create: Callable[[], AbstractContextManager[T]]) -> None:
        self._create = create
        self._kept: tuple[T, ExitStack] | None = None

    @contextmanager
    def lent(self, request: pytest.FixtureRequest) -> Iterator[T]:
        failed = request.session.testsfailed
        if self._kept is None:
            with ExitStack() as stack:
                made = stack.enter_context(self._create())
                self._kept = made, stack.pop_all()
        yield self._kept[0]
        if request.session.testsfailed > failed:
            self.close()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].close()
