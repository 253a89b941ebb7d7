"""Named fault points: places where a test may stop the process, delay it or make it fail.

A point costs one look-up when nothing is armed. Points are armed by SLUICE_FAULTS, or inside one
process by `arm`, as `name=action[@hit]` separated by commas. `@3` acts on the third passage only;
without it every passage acts. An action is one or several of these, joined by `+` and done in that
order:

    count             nothing: the passage is counted, and `passages` says how many there were
    first:PATH        writes its process number to the new file PATH; no further action when it is there
                      already. Of all processes that share the file, one passage goes on
    delay:SECONDS     waits
    hold:PATH         waits until the file PATH exists
    raise[:ERROR]     raises the error class of that name: one of sluice.errors, or one of Python's own
                      (OSError when no name is given)
    errno:NAME        raises the OSError that the system has for NAME (ENOSPC, EACCES, ...)
    crash             exits at once with status 137, as kill -9 would

Points sit where one stage hands to another and around what becomes durable, in modules that do I/O,
never in the pure core.
"""

import builtins
import errno
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sluice import errors

CRASHED = 137
_HOLD_LOOK_SECONDS = 0.005
_ACTIONS = ("count", "first", "delay", "hold", "raise", "errno", "crash")

_lock = threading.Lock()
_hits: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class _Fault:
    """What one point does, and on which passage; None for every one."""

    steps: tuple[tuple[str, str], ...]
    hit: int | None


def _parse(text: str) -> dict[str, _Fault]:
    armed: dict[str, _Fault] = {}
    for part in filter(None, text.split(",")):
        name, _, action = part.partition("=")
        action, _, hit = action.partition("@")
        steps = tuple((kind, argument) for kind, _, argument in (step.partition(":") for step in action.split("+")))
        for kind, argument in steps:
            if kind not in _ACTIONS:
                raise ValueError(f"fault point {name}: there is no action {kind!r}")
            if kind == "raise":
                _error_class(argument)
            if kind == "errno":
                _system_error(argument)
        armed[name] = _Fault(steps, int(hit) if hit else None)
    return armed


def _error_class(name: str) -> type[Exception]:
    found = getattr(errors, name, None) or getattr(builtins, name, None) if name else OSError
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise ValueError(f"there is no error class {name!r} in sluice.errors or in Python itself")
    return found


def _system_error(name: str) -> OSError:
    number = getattr(errno, name, None)
    if not isinstance(number, int):
        raise ValueError(f"there is no system error {name!r}")
    return OSError(number, os.strerror(number))


_armed = _parse(os.environ.get("SLUICE_FAULTS", ""))


def arm(text: str) -> None:
    """Arms exactly what `text` names, in this process, and counts passages from 0 again. Empty text
    disarms. Raises ValueError.
    """
    armed = _parse(text)
    with _lock:
        _hits.clear()
        _armed.clear()
        _armed.update(armed)


def passages(name: str) -> int:
    """How often the armed point `name` was reached since it was armed, a passage that is still held
    or that raised included.
    """
    return _hits.get(name, 0)


def point(name: str) -> None:
    """Does nothing, unless a fault is armed at `name` in this process."""
    if not _armed:
        return
    fault = _armed.get(name)
    if fault is None:
        return
    with _lock:
        _hits[name] = hit = _hits.get(name, 0) + 1
    if fault.hit is not None and hit != fault.hit:
        return
    for kind, argument in fault.steps:
        if kind == "first" and not _is_first(argument):
            return
        _act(name, kind, argument)


def _is_first(path: str) -> bool:
    try:
        with Path(path).open("x", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def _act(name: str, kind: str, argument: str) -> None:
    if kind == "crash":
        os._exit(CRASHED)
    elif kind == "raise":
        raise _error_class(argument)(f"fault point {name}")
    elif kind == "errno":
        raise _system_error(argument)
    elif kind == "delay":
        time.sleep(float(argument))
    elif kind == "hold":
        while not Path(argument).exists():
            time.sleep(_HOLD_LOOK_SECONDS)
