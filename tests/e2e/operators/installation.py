"""`sluice` as a user has it: the wheel in a virtual environment of its own, run from another folder, by an ordinary
user, in a pipe or on a terminal.

Invariant: no module of the checkout can be imported. The dependencies are those of this environment, by a path file
in which Python does not look for other path files, such as the one of the checkout.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sysconfig
import termios
import time
import venv
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice_spark import jars
from tests.support.installed import ROOT, built_wheel
from tools.local.binaries import helper_account
from tools.local.jvm import QUICK

_DEADLINE_SECONDS = 900.0
"""The long part compares all tables, two commands at a time."""
LINES, COLUMNS = 24, 100


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said. On a terminal everything is `out`."""

    code: int
    out: str
    err: str = ""


class Installation:
    """`sluice` below `folder`. Commands run in `home`, which is not the folder of any configuration."""

    def __init__(self, folder: Path) -> None:
        wheels = built_wheel(folder / "dist"), built_wheel(folder / "readers", source=ROOT / "lake")
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        modules = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(modules)
        (modules / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        self.python = folder / "venv" / "bin" / "python"
        self.program = folder / "venv" / "bin" / "sluice"
        self.program.write_text(f"#!{self.python}\nimport sys\nfrom sluice.__main__ import main\nsys.exit(main())\n")
        self.program.chmod(0o755)
        self.home = folder / "elsewhere"
        self.home.mkdir()
        self._as_user = _ordinary_user()
        account = helper_account()
        if account is not None:
            for own in (folder, self.home):
                os.chown(own, account.pw_uid, account.pw_gid)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Ours, without the checkout and without settings."""
        plain = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLUICE_", "PYTHON", "COLUMNS", "LINES", "NO_COLOR", "PG"))
        }
        ours = {
            "PATH": os.pathsep.join((str(self.program.parent), plain["PATH"])),
            "HOME": str(self.home),
            "SLUICE_JARS": str(jars.default_directory()),
            "JAVA_TOOL_OPTIONS": QUICK,
        }
        return {**plain, **ours, **(more or {})}

    def command(self, *arguments: str) -> list[str]:
        return [*self._as_user, str(self.program), *arguments]

    def piped(self, *arguments: str, env: Mapping[str, str] | None = None, given: str = "") -> Ended:
        """Its output goes to a program."""
        return self.run(*self.command(*arguments), env=env, given=given)

    def run(self, *command: "str | Path", env: Mapping[str, str] | None = None, given: str = "") -> Ended:
        """Any program that finds `sluice` in its path."""
        done = subprocess.run(
            command,
            cwd=self.home,
            env=self.environment(env),
            input=given,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def closed(self, *arguments: str, stderr: bool = False) -> int:
        """The code of a command whose reader is gone."""
        reading, writing = os.pipe()
        os.close(reading)
        try:
            return subprocess.run(
                self.command(*arguments),
                cwd=self.home,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing if stderr else subprocess.DEVNULL,
                timeout=_DEADLINE_SECONDS,
                check=False,
            ).returncode
        finally:
            os.close(writing)

    def typed(
        self, *arguments: str, interrupt: Callable[[str], bool] | None = None, given: str = "", again: bool = False
    ) -> Ended:
        """On a terminal of LINES and COLUMNS. `given` is typed at once. Ctrl-C is typed when `interrupt` holds of what
        is on the screen; with `again` every two seconds until the command has ended, as at a prompt: Python notices a
        signal that comes just before it begins to read a line only with the next one.
        """
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.home,
            env=self.environment({"TERM": "xterm"}),
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(child)
        os.write(parent, given.encode())
        shown, deadline, due = b"", time.monotonic() + _DEADLINE_SECONDS, 0.0
        while time.monotonic() < deadline:
            if select.select([parent], [], [], 0.2)[0]:
                try:
                    more = os.read(parent, 65_536)
                except OSError:  # Linux says so when no process has the terminal any more
                    break
                if not more:
                    break
                shown += more
            if interrupt is not None and time.monotonic() >= due and interrupt(shown.decode(errors="replace")):
                due = time.monotonic() + 2.0 if again else deadline
                os.write(parent, b"\x03")
        if time.monotonic() >= deadline:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        os.close(parent)
        return Ended(code, shown.decode(errors="replace"))


def _ordinary_user() -> list[str]:
    """What begins the command of an ordinary user: nothing, unless these tests are run by root. Python and its
    packages may lie in root's home: the user may read everything, and writes what is its own.
    """
    account = helper_account()
    if account is None:
        return []
    rights = ("--inh-caps", "--ambient-caps", "--bounding-set")
    user = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    return ["setpriv", *user, *(f"{right}=-all,+dac_read_search" for right in rights)]


def _own_terminal() -> None:
    """As a shell starts a command: Ctrl-C reaches it, also where the tests themselves ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
