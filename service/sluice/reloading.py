"""A configuration file, and the files of its secrets, that change while a process runs: noticed, read
again, and taken as a whole or not at all.

Invariant: what is in force changes only when `take` has accepted all of what was read; whatever is
refused is named, and the process goes on with what it had. Looks at the files only, so that it costs
nothing while nobody edits them.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from sluice.errors import UsageError

LOOK_SECONDS = 2.0
"""Between two looks at the file. One that is being written is read when it stayed the same for as long."""

Signature = tuple[int, ...]
Read = TypeVar("Read")


def signature(*paths: str) -> Signature:
    """What is another one whenever one of the files was written to or replaced. One that is not there
    adds nothing.
    """
    found: list[int] = []
    for path in paths:
        with suppress(OSError):
            seen = Path(path).stat()
            found += (seen.st_mtime_ns, seen.st_size, seen.st_ino)
    return tuple(found)


class FileWatch:
    """Tells when the files at `paths` are not those that were `seen`. For one thread."""

    def __init__(self, *paths: str, seen: Signature) -> None:
        self._paths = paths
        self._taken = self._last = seen

    def changed(self) -> bool:
        """Whether there is a change that has not been reported yet, and is finished: two looks in a row
        found the same.
        """
        now = signature(*self._paths)
        finished = now != self._taken and now == self._last
        self._last = now
        if finished:
            self._taken = now
        return finished


class Reloading(Generic[Read]):
    """Reads again in a thread of its own. `read` and `take` raise UsageError to refuse; `said` gets
    the reason, or an empty text when what the file holds is in force.
    """

    def __init__(
        self, watch: FileWatch, *, read: Callable[[], Read], take: Callable[[Read], None], said: Callable[[str], None]
    ) -> None:
        self._watch, self._read, self._take, self._said = watch, read, take, said
        self._wake = threading.Event()
        self._asked = False
        self._ended = False
        self._logger = structlog.get_logger("configuration")
        self._thread = threading.Thread(target=self._run, name="configuration", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self) -> None:
        """Reads again now, changed or not: what SIGHUP asks for. From any thread."""
        self._asked = True
        self._wake.set()

    def close(self) -> None:
        """Nothing is taken any more once this has been called."""
        self._ended = True
        self._wake.set()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            asked, self._asked = self._asked, False
            if (self._watch.changed() or asked) and not self._ended:
                self.reload()

    def reload(self) -> None:
        """Reads, and takes what was read unless something in it is refused."""
        began = time.monotonic()
        try:
            self._take(self._read())
        except UsageError as error:
            reason = " ".join(filter(None, (f"{error};", error.hint))).rstrip(";")
            self._said(reason)
            self._logger.error("the configuration was changed and is not taken", error=str(error), hint=error.hint)
        except Exception as error:
            self._said(f"it could not be read ({type(error).__name__})")
            self._logger.error("the configuration was changed and is not taken", exc_info=error)
        else:
            self._said("")
            self._logger.info("the configuration is in force", seconds=round(time.monotonic() - began, 2))
