"""`sluice` with every wait of its own divided by one factor, so that three minutes of problem fit
into seconds and still mean the same.

`python -m tests.ops.short_waits FACTOR ARGUMENTS...`. What is divided: each constant of the service
whose name ends in _SECONDS, the time-outs and retries of the object store's client, and how old a
heartbeat may be. What others decide is divided by whoever starts it (wal_sender_timeout, rules,
settings).
"""

import importlib
import pkgutil
import sys
from datetime import timedelta
from types import ModuleType

import sluice
from sluice.cli import main
from sluice.health.endpoint import Health
from sluice.store import remote

_SUFFIX = "_SECONDS"


def hurry(factor: float) -> None:
    """Divides. Once per process, before anything has started."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            if name.endswith(_SUFFIX) and isinstance(value, float | int):
                setattr(module, name, value / factor)
            elif name.endswith(_SUFFIX) and isinstance(value, tuple):
                setattr(module, name, tuple(seconds / factor for seconds in value))
    for options in (remote.CLIENT, remote.RETRY):
        for name, value in dict(options).items():
            if isinstance(value, timedelta):
                options[name] = value / factor  # type: ignore[literal-required]
    defaults = Health.__init__.__kwdefaults__
    assert defaults is not None
    defaults["loop_seconds"] /= factor


def _modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(sluice.__path__, prefix="sluice.")
    return [importlib.import_module(module.name) for module in found if not module.name.endswith("__main__")]


if __name__ == "__main__":
    hurry(float(sys.argv.pop(1)))
    main()
