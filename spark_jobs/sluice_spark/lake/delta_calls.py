"""Delta's and Hadoop's objects in the JVM: the one place that knows how to reach them, and in which order their methods
take what they take. What a commit needs besides has names of its own, in `sluice_spark.lake.direct.transaction`.

A look through the name of a package takes a millisecond, so nothing is asked of the JVM before it is used, and what was
found is kept. JVM errors pass: the caller translates them.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession


class DeltaCalls:
    """For the thread that works in `session`."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @cached_property
    def jvm(self) -> Any:
        return self._session._jvm

    @cached_property
    def java(self) -> Any:
        """The session itself."""
        return self._session._jsparkSession

    @cached_property
    def delta(self) -> Any:
        """The package."""
        return self.jvm.org.apache.spark.sql.delta

    @cached_property
    def none(self) -> Any:
        return module(self.jvm.scala, "None")

    @cached_property
    def logs(self) -> Any:
        return self.delta.DeltaLog

    @cached_property
    def _sessions(self) -> Any:
        return module(self.jvm.org.apache.spark.sql, "SparkSession")

    def activate(self) -> None:
        """Delta reads a checkpoint in the session of the thread, and a thread of ours may have none yet."""
        self._sessions.setActiveSession(self.java)

    def log(self, path: str, options: Mapping[str, str] | None = None) -> Any:
        """Delta's object for the table at `path`, as it was read last: one for each path and set of `options`."""
        if not options:
            return self.logs.forTable(self.java, path)
        stated = self.jvm.java.util.HashMap()
        for name, value in options.items():
            stated.put(name, value)
        to_scala = self.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap
        return self.logs.forTable(self.java, self.jvm.org.apache.hadoop.fs.Path(path), to_scala(stated))

    def newest(self, log: Any) -> Any:
        """The newest version of the table of `log`, by a listing."""
        return log.update(*(False, self.none, self.none))

    def version(self, log: Any, number: int) -> Any:
        return log.getSnapshotAt(*(number, self.none, self.none, False))

    def place(self, path: str) -> tuple[Any, Any]:
        """A path, and the file system that has it."""
        found = self.jvm.org.apache.hadoop.fs.Path(path)
        return found, found.getFileSystem(self.java.sessionState().newHadoopConf())


def module(package: Any, name: str) -> Any:
    """The object `name` of Scala."""
    return getattr(package, f"{name}$").__getattr__("MODULE$")
