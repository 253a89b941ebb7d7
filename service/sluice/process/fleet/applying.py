"""Runs the one applier of all pipelines of a folder, without their ingests: those run elsewhere, each in its own pod.

Invariants: a file that is refused changes nothing for the other pipelines. What is in force changes at the
start and on SIGHUP only. The applier never outlives this process. Holds no logic of the applier.
"""

import signal
import threading
from collections.abc import Callable

import structlog

from sluice import signals
from sluice.errors import Interrupted, UsageError
from sluice.process.child_process import ChildProcess, executing, shell_status
from sluice.process.fleet.member import Folder, Member, document, require_members
from sluice.process.pipeline import ApplierCommand

_OVER_SECONDS = 5.0
"""Beyond the longest stop of a pipeline, for the applier's JVM."""


def run(read: Callable[[], Folder], applier: ApplierCommand, *, workers: int) -> int:
    """Applies what `read` finds until a signal asks to stop, or until the applier ends with an error that does not
    pass by itself; returns its exit code. Raises UsageError when there is nothing to apply, Interrupted when the
    applier could not finish in its time.
    """
    return _Applying(read, applier, workers=workers).run()


def still_applied(found: Folder, before: Folder) -> Folder:
    """`found`, and the pipelines of `before` whose files are refused now: they go on with the old settings."""
    kept: dict[str, Member] = {name: one for name, one in before.members.items() if one.config in found.refused}
    return Folder({**kept, **found.members}, found.refused)


class _Applying:
    def __init__(self, read: Callable[[], Folder], applier: ApplierCommand, *, workers: int) -> None:
        self._read = read
        self._log = structlog.get_logger("fleet")
        self._asked, self._stopped = threading.Event(), threading.Event()
        self._folder = Folder({}, {})
        self._code = 0
        self._applier = ChildProcess(
            [*applier.command, "--workers", str(workers)],
            launch=executing(applier.environment, fed=True),
            on_end=self._ended,
            feed=lambda: document(self._folder.members.values()),
        )

    def run(self) -> int:
        self._take(require_members(self._read()))
        signals.arm().hand_to(self._stop)
        signals.arm().hand_reload_to(self._asked.set)
        self._applier.start()
        try:
            while not self._stopped.is_set():
                self._asked.wait()
                self._asked.clear()
                if not self._stopped.is_set():
                    self._reload()
        finally:
            seconds = max(one.stop_seconds for one in self._folder.members.values())
            self._applier.stop(timeout_seconds=seconds + _OVER_SECONDS)
        if self._applier.last_code in (Interrupted.exit_code, 128 + signal.SIGKILL):
            raise Interrupted(
                "the applier could not finish in its time",
                hint="nothing is lost: the next applier continues after the last commit of each table",
            )
        return self._code

    def _take(self, found: Folder) -> None:
        for config, reason in sorted(found.refused.items()):
            self._log.error("a configuration is refused", config=config, reason=reason)
        self._folder = still_applied(found, self._folder)
        self._log.info("applying", pipelines=sorted(self._folder.members))

    def _reload(self) -> None:
        try:
            found = require_members(self._read())
        except UsageError as error:
            self._log.error("the folder cannot be read, so nothing changes", error=str(error), hint=error.hint)
            return
        self._take(found)
        # In its own time: one that does not read must not keep us from stopping.
        threading.Thread(target=self._applier.feed_again, name="feed", daemon=True).start()

    def _stop(self, number: signal.Signals) -> None:
        self._log.info("stopping, a second signal exits at once", signal=number.name)
        self._stopped.set()
        self._asked.set()

    def _ended(self, code: int) -> None:
        self._code = shell_status(code)
        self._log.error("the applier ended, so this process ends too", exit_status=self._code)
        self._stopped.set()
        self._asked.set()
