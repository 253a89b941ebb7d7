"""What an applier needs of its machine's memory, derived from its settings: the only place where the
parts are added up.

The parts are ceilings, not averages. Pure.
"""

from dataclasses import dataclass

from sluice.settings.model import ApplySettings

_MEBI = 1024**2
_GIBI = 1024**3
OUTSIDE_HEAP = 512 * _MEBI
"""Classes, compiled code, threads and network buffers of a JVM; a sixteenth of the heap comes on top
for the collector.
"""
PYTHON = 384 * _MEBI
"""The interpreter with Arrow and numpy, and the actions of the data files that are kept."""
FOLD_TIMES = 5
"""How many times over a worker holds `max_memory` while it folds (`make bench`, P7)."""


@dataclass(frozen=True, slots=True)
class ApplierMemory:
    """Bytes. `container` is what the process and its JVM may use together, in whole GiB."""

    heap: int
    jvm: int
    workers: int
    key_cache: int

    @property
    def python(self) -> int:
        """The driver's Python process."""
        return PYTHON + self.workers + self.key_cache

    @property
    def container(self) -> int:
        """The limit of a container."""
        return -(-(self.jvm + self.python) // _GIBI) * _GIBI


def applier_memory(apply: ApplySettings) -> ApplierMemory:
    """For these settings. Every worker may fold a window of the greatest size while it holds a
    segment as large as a window.
    """
    heap = apply.driver_memory
    return ApplierMemory(
        heap=heap,
        jvm=heap + OUTSIDE_HEAP + heap // 16,
        workers=apply.workers * (FOLD_TIMES * apply.max_memory + apply.max_window),
        key_cache=apply.key_cache,
    )
