"""A Delta table's log, read through Delta itself: its newest version, its markers, single commits.

Must not judge what it reads, and must not rebuild a table's state to find a marker that the
version's checksum states. (Delta protocol: Version Checksum File.)
"""

from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.errors import UnsupportedChange
from sluice_spark.lake.delta_calls import DeltaCalls
from sluice_spark.lake.foreign_commits import COMMIT, Commit, commit_name, damaged, read_commit, shape

_AT_ONCE = 1 << 20
FORGETS = "delta.setTransactionRetentionDuration"
"""The property of a table that lets go of markers by their age."""
CHECKPOINT = ".checkpoint."
"""In the name of each of its files."""


class LakeLog:
    """The log of the table at `path`. Answers describe the state at the last `update`.
    JVM errors pass: the caller translates them.
    """

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._calls = DeltaCalls(session)
        self._path = path
        self._snapshot: Any = None

    def update(self) -> int:
        """The newest version, -1 when there is no table. Raises UnsupportedChange when its newest
        commit is empty or damaged and Delta fails on it.
        """
        self._calls.activate()
        try:
            self._snapshot = self._calls.newest(self._calls.log(self._path))
            return int(self._snapshot.version())
        except Py4JJavaError:
            newest = max(self._listed(), default=-1)
            if newest >= 0:
                self.commit(newest)
            raise

    def marker(self, app_id: str) -> int | None:
        """What the newest version records for `app_id`."""
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().setTransactions().isDefined():
            stated = checksum.get().setTransactions().get()
            found = (stated.apply(place) for place in range(stated.size()))
            return next((int(item.version()) for item in found if item.appId() == app_id), None)
        recorded = self._snapshot.transactions().get(app_id)
        return int(recorded.get()) if recorded.isDefined() else None

    def app_ids(self) -> list[str]:
        """Of everything that ever left a marker, as of the newest version."""
        names = self._snapshot.transactions().keysIterator()
        found = []
        while names.hasNext():
            found.append(str(names.next()))
        return found

    def forgets_markers(self) -> bool:
        """Whether a marker that the newest version does not record may have been left all the same."""
        return bool(self._snapshot.metadata().configuration().contains(FORGETS))

    def file_count(self) -> int:
        """Files in the newest version."""
        return int(self._snapshot.numOfFiles())

    def column_names(self) -> list[str]:
        """Of the newest version, in order."""
        return [str(name) for name in self._snapshot.schema().fieldNames()]

    def schema_json(self) -> str:
        """The columns of the newest version, as the log has them."""
        return str(self._snapshot.schema().json())

    def commit(self, version: int) -> Commit:
        """The commit that made `version`. Raises UnsupportedChange when its file is gone, empty or
        damaged.
        """
        name = commit_name(version)
        try:
            return read_commit(version, self._lines(name), name=name)
        except Py4JJavaError as error:
            gateway: Any = self._session.sparkContext._gateway
            if is_instance_of(gateway, error.java_exception, "org.apache.hadoop.fs.ChecksumException"):
                raise damaged(name) from None
            if not is_instance_of(gateway, error.java_exception, "java.io.FileNotFoundException"):
                raise
            raise cleaned_up(name) from None

    def shape_at(self, version: int) -> Any:
        """The columns of `version`, to be compared with a commit's. Raises UnsupportedChange when
        the log does not reach back so far.
        """
        try:
            return shape(str(self._calls.version(self._calls.log(self._path), version).schema().json()))
        except Py4JJavaError:
            raise UnsupportedChange(
                f"the columns of the lake table's version {version} cannot be read from its log any more"
            ) from None

    def clear(self) -> None:
        """Removes what a table that is gone left behind, where there is none: Delta takes its checksum for that of
        the version that the next table comes to. A log with a commit or a checkpoint stays as it is.
        """
        found = list(self._entries())
        if not any(COMMIT.fullmatch(name) or CHECKPOINT in name for name, _ in found):
            for name, is_file in found:
                if is_file:
                    path, files = self._place(name)
                    files.delete(path, *(False,))

    def _lines(self, name: str) -> Iterator[bytes]:
        """Piece by piece: a commit of a large table has a line for each of its files."""
        path, files = self._place(name)
        stream = files.open(path)
        try:
            rest = b""
            while piece := bytes(stream.readNBytes(_AT_ONCE)):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
            yield rest
        finally:
            stream.close()

    def _listed(self) -> Iterator[int]:
        for name, _ in self._entries():
            if match := COMMIT.fullmatch(name):
                yield int(match[1])

    def _entries(self) -> Iterator[tuple[str, bool]]:
        """Names in the log's folder, and whether each is a file; none where there is no folder."""
        try:
            folder, files = self._place("")
            found = files.listStatus(folder)
        except Py4JJavaError:
            return
        for status in found:
            yield str(status.getPath().getName()), bool(status.isFile())

    def _place(self, name: str) -> tuple[Any, Any]:
        return self._calls.place(f"{self._path}/_delta_log/{name}")


def cleaned_up(name: str) -> UnsupportedChange:
    """The log file `name` is gone, although nobody has looked at it yet."""
    return UnsupportedChange(
        f"the commit {name} of the lake table's log was cleaned up before it could be looked at: "
        "whether it changed rows cannot be found out"
    )
