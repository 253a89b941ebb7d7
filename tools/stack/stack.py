"""Bringing the local stack up and down, member by member.

Invariants: what runs already is left alone; a start that fails takes with it what it had started,
and nothing else; a stop waits for each member to end before it touches what that member stands on.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.local.binaries import LocalServerError
from tools.stack.layout import Layout, require_free
from tools.stack.members import Member, members
from tools.stack.processes import Stopped

_POLL_SECONDS = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Removed:
    """What `reset` deleted."""

    path: Path
    bytes: int


class Stack:
    """The members of one layout. `say` gets a line for whatever is done."""

    def __init__(self, layout: Layout, *, say: Say) -> None:
        self.layout = layout
        self.members = members(layout)
        self._say = say

    def pid(self, member: Member) -> int | None:
        """The member's process while it runs."""
        process = self.layout.daemon(member.name).process
        return process.pid if process is not None else None

    def up(self) -> int:
        """Starts what does not run and waits until all of it is ready. How many were started.
        Raises LocalServerError.
        """
        with self.layout.alone():
            self._check_ports()
            self.layout.establish()
            began: list[Member] = []
            try:
                for member in self.members:
                    if self.pid(member) is not None:
                        self._wait(member)
                    elif not self._start(member, began):
                        continue
                    member.settle()
            except BaseException:
                for member in reversed(began):
                    self._say(f"stopping {member.name} again")
                    self._stop(member)
                raise
            return len(began)

    def _check_ports(self) -> None:
        """Before anything is started, so that a port in use costs nothing but its line."""
        for member in self.members:
            if self.pid(member) is None:
                require_free(member.port_variable, member.port)
            elif (noted := self.layout.noted_ports.get(member.port_variable)) != member.port:
                raise LocalServerError(
                    f"{member.name} runs on port {noted}: make down before it starts with "
                    f"{member.port_variable}={member.port}"
                )

    def down(self) -> int:
        """Stops what runs, in order. How many did. Raises LocalServerError when one had to be
        killed.
        """
        with self.layout.alone():
            return self._down()

    def _down(self) -> int:
        outcomes = [
            (member, outcome) for member in reversed(self.members) if (outcome := self._stop(member)) is not None
        ]
        forced = [
            f"{member.name} (see {self.layout.daemon(member.name).log})"
            for member, outcome in outcomes
            if outcome.forced
        ]
        if forced:
            raise LocalServerError(
                f"killed, because it did not end in time: {', '.join(forced)}; nothing is lost, the "
                "next start goes on from what is stored"
            )
        return len(outcomes)

    def reset(self) -> list[Removed]:
        """Stops what runs and deletes all that the stack stored."""
        with self.layout.alone():
            self._down()
            removed = [
                Removed(path, _size(path)) for path in (*self.layout.data, self.layout.directory) if path.exists()
            ]
            self.layout.remove()
        return removed

    def _start(self, member: Member, began: list[Member]) -> bool:
        try:
            launch = member.launch()
        except LocalServerError as error:
            if not member.optional:
                raise
            self._say(f"{member.name}: left out, {error}")
            return False
        since = time.monotonic()
        began.append(member)
        self.layout.daemon(member.name).start(launch)
        self._wait(member)
        self._say(
            f"{member.name}: started on port {member.port}, process {self.pid(member)}, ready after "
            f"{time.monotonic() - since:.1f} s"
        )
        return True

    def _wait(self, member: Member) -> None:
        """Returns when the member is ready. Raises LocalServerError when it ends or takes too long."""
        daemon = self.layout.daemon(member.name)
        deadline = time.monotonic() + member.patience_seconds
        while not member.ready():
            if daemon.process is None:
                what = "ended before it was ready"
            elif time.monotonic() > deadline:
                what = f"was not ready on port {member.port} within {member.patience_seconds:.0f} s"
            else:
                time.sleep(_POLL_SECONDS)
                continue
            raise LocalServerError(f"{member.name} {what}; the end of {daemon.log}:\n{daemon.log_tail()}")

    def _stop(self, member: Member) -> Stopped | None:
        daemon = self.layout.daemon(member.name)
        outcome = daemon.stop(member.stop)
        if outcome is not None:
            self._say(
                f"{member.name}: {'killed' if outcome.forced else 'stopped'}, process {outcome.pid}, "
                f"after {outcome.seconds:.1f} s"
            )
        return outcome


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
