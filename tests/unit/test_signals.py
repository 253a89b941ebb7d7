"""What the signals of a process ask for is done, whenever they come."""

import subprocess
import sys

_EARLY = """
import os, signal, threading
from sluice import signals
armed, reloaded = signals.arm(), threading.Event()
os.kill(os.getpid(), signal.SIGHUP)
os.write(armed._writing, bytes([signals._CAUGHT_UP]))
assert armed._caught_up.wait(30), "the signal is read"
armed.hand_reload_to(reloaded.set)
assert reloaded.wait(5), "it is not forgotten"
"""


def test_a_sighup_while_a_process_starts_is_not_forgotten() -> None:
    """What it asks to read again may have been read a moment before."""
    run = subprocess.run([sys.executable, "-c", _EARLY], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
