"""Named fault points: places where a test may stop the process, delay it or make it fail.

A point costs one dictionary look-up when nothing is armed. They are armed by SLUICE_FAULTS only, as
`name=action[@hit]` separated by commas: `crash` leaves at once with status 137 as kill -9 would, `raise` raises OSError, `hold:PATH` waits until
the file PATH exists. `@3` acts on the third passage only; without it every passage acts.
Points sit in rooms that do I/O, never in the pure core.
"""

import os
import threading
import time
from pathlib import Path

_lock = threading.Lock()
_hits: dict[str, int] = {}


def _parse(text: str) -> dict[str, tuple[str, int | None]]:
    armed: dict[str, tuple[str, int | None]] = {}
    for part in filter(None, text.split(",")):
        name, _, action = part.partition("=")
        action, _, hit = action.partition("@")
        armed[name] = (action, int(hit) if hit else None)
    return armed


_armed = _parse(os.environ.get("SLUICE_FAULTS", ""))


def point(name: str) -> None:
    """Does nothing, unless this process was started with a fault armed at `name`."""
    if not _armed or name not in _armed:
        return
    action, wanted = _armed[name]
    with _lock:
        _hits[name] = hit = _hits.get(name, 0) + 1
    if wanted is not None and hit != wanted:
        return
    if action == "crash":
        os._exit(137)
    if action == "raise":
        raise OSError(f"fault point {name}")
    if action.startswith("hold:"):
        while not Path(action[5:]).exists():
            time.sleep(0.01)
