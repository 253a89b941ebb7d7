"""Options that an operator changes while the applier runs: read again by a process of their own,
compared, and handed to the loop.

Owns: options are taken as a whole or not at all, and by the loop only, between two rounds. What the
settings forbid to change is known by `fixed_settings`, which both sides of the pipeline compare; the
applier itself sees no settings.
"""

import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from sluice.errors import UsageError
from sluice.reloading import FileWatch, Reloading, signature
from sluice_spark.options import ApplyOptions

READ_SECONDS = 120.0
"""A Python that starts on a busy machine, and no more."""
_CHANGING = (
    "tables", "freshness_seconds", "maintenance_share", "vacuum_seconds", "retention_seconds", "log_level",
    "config_hash",
)  # fmt: skip
"""Options made of settings that may change (`sluice.settings.reload`), but for the keys of stores."""


class Configuration:
    """Follows the files that `options` were made from. `names` are the tables there are. `rotated` is
    called when the keys of a store changed, which takes a new process.
    """

    def __init__(
        self, options: ApplyOptions, *, names: Callable[[], Iterable[str]], rotated: Callable[[], None]
    ) -> None:
        self._options = options
        self._rotated = rotated
        self._names = names
        self._fresh: ApplyOptions | None = None
        self._following = False
        self._lock = threading.Lock()
        self.refused = ""
        """Why the file as it is now is not in force; empty when it is."""
        watch = FileWatch(*options.config_files, seen=tuple(options.config_seen))
        self._reloading = Reloading(watch, read=self._read, take=self._take, said=self._said)

    def ask(self) -> None:
        """Reads the file again now. From any thread."""
        self._reloading.ask()

    def close(self) -> None:
        self._reloading.close()

    def fresh(self) -> ApplyOptions | None:
        """Options that are to be in force from now on, once for each change. The file is followed from
        the first call on, by when the tables are known; what changed before is seen then.
        """
        if not self._following and self._options.reread_command:
            self._following = True
            self._reloading.start()
        with self._lock:
            fresh, self._fresh = self._fresh, None
        return fresh

    def _read(self) -> ApplyOptions:
        return _read(self._options.reread_command)

    def _take(self, read: ApplyOptions) -> None:
        before, after = self._options.fixed_settings, read.fixed_settings
        differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if differing:
            raise UsageError(
                f"{', '.join(differing)} cannot change while a process runs, so no change in the file was applied",
                hint="restart the process, or restore the old value",
            )
        other = sorted(name for name in self._names() if self._options.targets_of(name) != read.targets_of(name))
        if other:
            raise UsageError(
                f"the targets of {', '.join(other[:3])} cannot change while a process runs",
                hint="restart ingest and the applier, or restore the old targets; `sluice plan` shows the effect",
            )
        if _stores(read) != _stores(self._options):
            self._rotated()
        self._options = replace(self._options, **{name: getattr(read, name) for name in _CHANGING})
        with self._lock:
            self._fresh = self._options

    def _said(self, reason: str) -> None:
        self.refused = reason


def with_present_keys(options: ApplyOptions) -> ApplyOptions:
    """`options` with the keys of its stores as they are now: it may have been made a long time ago. What
    else changed is taken, or refused, by whoever follows the files.
    """
    if not options.reread_command or signature(*options.config_files) == tuple(options.config_seen):
        return options
    try:
        read = _read(options.reread_command)
    except UsageError as error:
        structlog.get_logger("configuration").warning("the keys of the stores cannot be read again", error=error)
        return options
    if read.fixed_settings != options.fixed_settings:
        return options
    return replace(options, spool_options=read.spool_options, lake_options=read.lake_options)


def _stores(options: ApplyOptions) -> tuple[dict[str, str], dict[str, str]]:
    return options.spool_options, options.lake_options


def _read(command: Sequence[str]) -> ApplyOptions:
    done = subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, timeout=READ_SECONDS, check=False
    )
    if done.returncode == UsageError.exit_code:
        raise UsageError(done.stdout.strip())
    if done.returncode:
        raise UsageError(f"reading it ended with exit code {done.returncode}")
    return ApplyOptions.from_json(done.stdout)
