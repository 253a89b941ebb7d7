"""Keeps the log of one lake table short: writes its checkpoints and removes the entries that nobody needs any
more. Every look at a table lists its log, so what it costs must not grow with the table's age.

Both happen beside the table's windows, in another thread. Delta keeps one object for each table, whose lock a
window would wait for, and one for each of its versions, which computes one thing at a time. So this has objects of
its own, and shares nothing with windows but the files. A checkpoint follows from the log up to its version, and
never changes it: whoever writes it, and whatever is committed meanwhile, it is right.

Owns: `_last_checkpoint` names a checkpoint only when it is whole, and on a local disk durable. No commit goes away
before it was examined and reported: Delta removes only what a checkpoint has made unnecessary, and is asked only
when that checkpoint is no newer than the last version that a durable report of ours names. Within that, what was the
newest version at any moment of the retention can still be read. (Delta protocol: Checkpoints, Last Checkpoint File,
Metadata Cleanup.)
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import ApplyError, ObjectMissing
from sluice.store.base import ObjectStore
from sluice_spark.lake.delta_calls import DeltaCalls, module
from sluice_spark.lake.disk_sync import sync_checkpoint
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.foreign_commits import commit_name
from sluice_spark.lake.layout import checkpoint_interval
from sluice_spark.lake.log import CHECKPOINT

SETTINGS = {
    # Delta takes a checkpoint that failed for none that was due, unless it has to say so.
    "spark.databricks.delta.checkpoint.exceptionThrowing.enabled": "true",
}
"""Of the session in which logs are kept short."""
LAST = "_last_checkpoint"
_LOG_RETENTION = "delta.logRetentionDuration"
_MINUTE = 60.0
"""To which Delta rounds when it removes commits."""
_OWN_OBJECTS = {"fs.sluice.beside": "true"}
"""Options under which Delta has objects for this alone."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The newest version of which a table's log has a checkpoint (0: none; so old that the next one is due where the
    log names one that is gone), and after how many versions the next one is due.
    """

    checkpoint: int
    interval: int


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint of `version`, as Delta's objects have it."""

    version: int
    log: Any
    made: Any


class LogUpkeep:
    """The log of the table at `path`, whose folder (with its slash) is `folder` in `store`, for the session of the
    one thread that does this, which has SETTINGS. `require_owner` raises when this process may not write.
    """

    def __init__(
        self, session: SparkSession, path: str, *, store: ObjectStore, folder: str, require_owner: Callable[[], None]
    ) -> None:
        self._calls = DeltaCalls(session)
        self._path = path
        self._store = store
        self._log = f"{folder}_delta_log/"
        self._require_owner = require_owner

    def look(self, version: int) -> LogState:
        """What the log says at `version`. Asks for three small objects at most, lists where a checkpoint has another
        form than ours, and asks for nothing of Spark. Raises StoreError.
        """
        checkpoint, interval = 0, checkpoint_interval(self._path, {})
        # A hint that is missing or damaged is written anew, and a checksum is an extra.
        with suppress(ObjectMissing, ValueError, KeyError, TypeError):
            checkpoint = int(json.loads(self._store.get(f"{self._log}{LAST}"))["version"])
        with suppress(ObjectMissing, ValueError, KeyError, TypeError):
            properties = json.loads(self._store.get(f"{self._log}{version:020d}.crc"))["metadata"]["configuration"]
            interval = checkpoint_interval(self._path, properties)
        if checkpoint and not self._has_checkpoint(checkpoint):
            # Some readers refuse a table whose log names a checkpoint that is gone; one too many does no harm.
            checkpoint = version - interval
        return LogState(checkpoint, interval)

    def _has_checkpoint(self, version: int) -> bool:
        name = f"{self._log}{version:020d}{CHECKPOINT}"
        if self._store.size(f"{name}parquet") is not None:
            return True
        return next(iter(self._store.list(self._log, after=name)), "").startswith(name)

    def write(self, version: int) -> Written:
        """Writes the checkpoint of `version`, which has been reported. Readers find the one before until it has its
        `name`. Raises ApplyError, UnsupportedChange when Delta cannot, and whatever `require_owner` raises.
        """
        calls = self._calls
        with translated_errors():
            log = self._newest()
            snapshot = log.unsafeVolatileSnapshot()
            if int(snapshot.version()) != version:
                snapshot = calls.version(log, version)
            self._require_owner()
            try:
                made = module(calls.delta, "Checkpoints").writeCheckpoint(calls.java, log, snapshot, calls.none)
            finally:
                snapshot.uncache()
        return Written(version, log, made)

    def name(self, written: Written) -> None:
        """Tells readers of a checkpoint. Raises ApplyError, StoreError, and whatever `require_owner` raises."""
        self._require_there(written.version)
        if self._path.startswith("/"):
            sync_checkpoint(Path(self._path), written.version)
        self._require_owner()
        with translated_errors():
            summed = module(self._calls.delta, "LastCheckpointInfo").checksumEnabled(self._calls.java)
            written.log.writeLastCheckpointFile(written.log, written.made, summed)

    def clean(self, *, retention_seconds: float, reported: int) -> bool:
        """Removes what no version of the last `retention_seconds` needs, or of a longer time that the table itself
        asks for. `reported` is the version that the last durable report names. Whether it could. Raises ApplyError,
        and whatever `require_owner` raises.
        """
        with translated_errors():
            log = self._newest()
            checkpoint = log.readLastCheckpointFile()
            if not checkpoint.isDefined() or int(checkpoint.get().version()) > reported:
                return False
            snapshot = log.unsafeVolatileSnapshot()
            metadata = snapshot.metadata()
            if not log.enableExpiredLogCleanup(metadata):
                return True
            if metadata.configuration().contains(_LOG_RETENTION):
                retention_seconds = max(retention_seconds, float(log.deltaRetentionMillis(metadata)) / 1000)
            now = time.time()
            retention_seconds = max(retention_seconds, now - self._goes_before(now - retention_seconds))
            self._require_owner()
            minute = module(self._calls.delta, "TruncationGranularity").MINUTE()
            # An Option of Java's Long: py4j makes an Integer of a number that is small enough for it.
            jvm = self._calls.jvm
            milliseconds = jvm.java.util.OptionalLong.of(int(retention_seconds * 1000))
            retention = jvm.scala.jdk.javaapi.OptionConverters.toScala(milliseconds)
            log.cleanUpExpiredLogs(snapshot, self._calls.none, retention, minute)
        return True

    def _goes_before(self, since: float) -> float:
        """Before when commits may go, so that what was the newest version at `since` or later stays (unix seconds).
        Delta removes what lies in front of a checkpoint as soon as the commit right before it is old, also if that was
        the newest version until the checkpoint's own commit came a moment ago.
        """
        names = {key.removeprefix(self._log) for key in self._store.list(self._log)}
        checkpoints = {int(name[:20]) for name in names if CHECKPOINT in name and name[:20].isdecimal()}
        for version in sorted(checkpoints):
            replaced, by = commit_name(version - 1), commit_name(version)
            if {replaced, by} <= names and self._written_at(by) > since:
                return min(since, self._written_at(replaced) - _MINUTE)
        return since

    def _written_at(self, name: str) -> float:
        path, files = self._calls.place(f"{self._path}/_delta_log/{name}")
        return float(files.getFileStatus(path).getModificationTime()) / 1000

    def _newest(self) -> Any:
        """Delta's object, with the newest version."""
        self._calls.activate()
        log = self._calls.log(self._path, _OWN_OBJECTS)
        self._calls.newest(log)
        return log

    def _require_there(self, version: int) -> None:
        """Who removes the table's folder meanwhile must not find a checkpoint in the table that comes next. Raises
        ApplyError.
        """
        if self._store.size(self._log + commit_name(version)) is not None:
            return
        ours = f"{self._log}{version:020d}{CHECKPOINT}"
        for key in [key for key in self._store.list(self._log) if key.startswith(ours)]:
            self._store.delete(key)
        raise ApplyError("the lake table's log is gone, or another one")
