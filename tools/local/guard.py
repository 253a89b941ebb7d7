"""Servers must not outlive their owner, even one that is killed with no chance to tidy up.

A guard is a tiny shell that waits for the end of a pipe whose other end only its owner holds: when
the owner is gone, however it went, the guard sends one signal to one process, or to one process
group.
"""

import signal
import subprocess


class Guard:
    """Sends `last_signal` to `target` (negative: a process group) if this process ends before
    `dismiss`.
    """

    def __init__(self, target: int, last_signal: signal.Signals) -> None:
        # A session of its own: Ctrl-C at a terminal must not end the guard before its owner.
        self._shell = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                'read -r _; kill -s "$1" -- "$2"',
                "guard",
                last_signal.name.removeprefix("SIG"),
                str(target),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def dismiss(self) -> None:
        """Called when the target has ended: its number may soon be somebody else's."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
