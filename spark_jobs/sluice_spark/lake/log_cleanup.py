"""Removes the entries of a table's log that nobody needs any more: every look at a table lists its log,
so what it costs must not grow with the table's age.

Owns that no commit goes away before it was examined and reported: Delta removes only what a
checkpoint has made unnecessary, and is asked only when that checkpoint is no newer than the last
version that a durable report of ours names. Within that, what was the newest version at any moment of
the retention can still be read. (Delta protocol: Metadata Cleanup.)
"""

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sluice_spark.lake.failures import translated_errors

EVERY_VERSIONS = 50
"""New versions of a table after which its log is looked at: the distance of its checkpoints."""


class LogHygiene:
    """Cleans the logs of a pipeline's tables, each in its turn. `before_delete` raises when this
    process may not.
    """

    def __init__(self, *, retention_seconds: float, before_delete: Callable[[], None]) -> None:
        self._retention_ms = int(retention_seconds * 1000)
        self._before_delete = before_delete
        self._cleaned: dict[str, int] = {}
        self._lock = threading.Lock()

    def clean(self, session: SparkSession, path: str, *, version: int, reported: int) -> bool:
        """Cleans the log of the table at `path`, which is at `version`, when it is time. `reported` is
        the version that the last durable report names. Whether it was cleaned. Raises ApplyError,
        and whatever `before_delete` raises.
        """
        with self._lock:
            if version - self._cleaned.setdefault(path, -EVERY_VERSIONS) < EVERY_VERSIONS:
                return False
        with translated_errors():
            jvm: Any = session._jvm
            delta = jvm.org.apache.spark.sql.delta
            log = delta.DeltaLog.forTable(session._jsparkSession, path)
            checkpoint = log.readLastCheckpointFile()
            if not checkpoint.isDefined() or int(checkpoint.get().version()) > reported:
                return False
            self._before_delete()
            none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
            minute = getattr(delta, "TruncationGranularity$").__getattr__("MODULE$").MINUTE()
            # An Option of Java's Long: py4j makes an Integer of a number that is small enough for it.
            retention = jvm.scala.jdk.javaapi.OptionConverters.toScala(
                jvm.java.util.OptionalLong.of(self._retention_ms)
            )
            log.cleanUpExpiredLogs(log.unsafeVolatileSnapshot(), none, retention, minute)
        with self._lock:
            self._cleaned[path] = version
        return True
