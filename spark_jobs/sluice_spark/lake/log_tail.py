"""A Delta table's log, read at its end through the object store: for a start that opens many tables, and
for the look before each window.

Delta needs about a tenth of a second and a listing for each table that it opens. This asks for the files
of the version that is known and for the commit after it, and lists only when there is one: a listing
costs what lies in the log. A look before a window also asks for the file with which the log begins: without it
nobody can read the table, whatever is newest. Owns that the answers are those of `LakeLog`: the end of a log speaks
for itself only where the newest commit has its checksum, and the checksum states markers, columns
and a protocol under which every commit is a file of the log. Whatever else is found, or whatever
goes wrong, is answered by Delta. Who asks examines the table by the same rules, so nothing that is
read here is believed with less proof. (Delta protocol: Version Checksum File.)
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import ObjectMissing, ServiceError, UnsupportedChange
from sluice.store.base import ObjectStore
from sluice_spark.lake.foreign_commits import COMMIT, Commit, commit_name, read_commit
from sluice_spark.lake.log import CHECKPOINT, FORGETS, LakeLog, cleaned_up

_CHECKSUM = re.compile(r"(\d{20})\.crc")
_NOT_IN_THE_LOG = frozenset({"catalogManaged", "coordinatedCommits-preview"})
"""Features of tables whose newest commits may be elsewhere."""


@dataclass(frozen=True, slots=True)
class _State:
    """What the checksum of the newest version states; -1: there is no table."""

    version: int
    markers: dict[str, int]
    columns: list[str]
    schema: str
    forgets: bool = False


class LogTail(LakeLog):
    """The log of the table at `path`, whose folder (with its slash) is `folder` in `store`.

    `since` is a version that an earlier process reported (-1: none did), so that older ones need
    not be listed. `beginnings` keeps by folder the file with which a log begins, for all looks of a process;
    without it nobody looks for the beginning.
    """

    def __init__(
        self,
        session: SparkSession,
        path: str,
        *,
        store: ObjectStore,
        folder: str,
        since: int,
        beginnings: dict[str, str] | None = None,
    ) -> None:
        super().__init__(session, path)
        self._store = store
        self._log = f"{folder}_delta_log/"
        self._since = since
        self._beginnings = beginnings
        self._state: _State | None = None

    def update(self) -> int:
        """Raises UnsupportedChange as well when the log has no beginning any more."""
        self._require_beginning()
        try:
            self._state = self._read()
        except (ServiceError, ValueError, TypeError, KeyError, AttributeError):
            self._state = None
        if self._state is None:
            return super().update()
        self._since = self._state.version
        return self._since

    def file_count(self) -> int:
        if self._state is not None:
            super().update()
        return super().file_count()

    def shape_at(self, version: int) -> Any:
        if self._state is not None:
            # Delta may still have a table in its memory that is no longer there.
            super().update()
        return super().shape_at(version)

    def marker(self, app_id: str) -> int | None:
        return super().marker(app_id) if self._state is None else self._state.markers.get(app_id)

    def app_ids(self) -> list[str]:
        return super().app_ids() if self._state is None else list(self._state.markers)

    def forgets_markers(self) -> bool:
        return super().forgets_markers() if self._state is None else self._state.forgets

    def column_names(self) -> list[str]:
        return super().column_names() if self._state is None else list(self._state.columns)

    def schema_json(self) -> str:
        return super().schema_json() if self._state is None else self._state.schema

    def commit(self, version: int) -> Commit:
        if self._state is None:
            return super().commit(version)
        name = commit_name(version)
        try:
            content = self._store.get(self._log + name)
        except ObjectMissing:
            raise cleaned_up(name) from None
        except ServiceError:
            return super().commit(version)
        return read_commit(version, content.split(b"\n"), name=name)

    def _require_beginning(self) -> None:
        """A folder that is removed while a commit lands keeps that commit. Delta goes on from what it has in
        memory, and nobody else can read the table.
        """
        if self._beginnings is None:
            return
        known = self._beginnings.get(self._log)
        try:
            if known is not None and self._store.size(self._log + known) is not None:
                return
            names = [key.removeprefix(self._log) for key in self._store.list(self._log)]
        except ServiceError:
            return  # whoever reads on says so
        commits = sorted(name for name in names if COMMIT.fullmatch(name))
        # Commits may be gone that a checkpoint has made unnecessary.
        first = max((name for name in names if CHECKPOINT in name), default="")
        if commits and commits[0] == commit_name(0):
            first = commits[0]
        if first:
            self._beginnings[self._log] = first
        elif commits:
            raise UnsupportedChange(
                f"the lake table's log begins with {commits[0]}: somebody else removed what came before it",
                hint="remove the rest of the lake table's folder and resync the table",
            )

    def _read(self) -> _State | None:
        """None where the end of the log does not say everything."""
        if self._since >= 0 and self._is_newest(self._since):
            return self._stated(self._since)
        after = f"{self._log}{self._since:020d}" if self._since >= 0 else ""
        names = [key.removeprefix(self._log) for key in self._store.list(self._log, after=after)]
        if not names and self._since < 0:
            return _State(-1, {}, [], "")
        commits = [int(match[1]) for name in names if (match := COMMIT.fullmatch(name))]
        checksums = [int(match[1]) for name in names if (match := _CHECKSUM.fullmatch(name))]
        if not commits or max(commits) != max(checksums, default=-1):
            return None
        return self._stated(max(commits))

    def _is_newest(self, version: int) -> bool:
        """Versions are dense: without the next commit there is none after it. A log is cleaned from its
        beginning, so the next one is not missing while this one is there.
        """
        here, after = (self._store.size(self._log + commit_name(number)) for number in (version, version + 1))
        return here is not None and after is None

    def _stated(self, version: int) -> _State | None:
        return _stated(version, json.loads(self._store.get(f"{self._log}{version:020d}.crc")))


def _stated(version: int, checksum: dict[str, Any]) -> _State | None:
    if checksum.get("setTransactions") is None or not _NOT_IN_THE_LOG.isdisjoint(
        checksum["protocol"].get("writerFeatures") or ()
    ):
        return None
    schema = str(checksum["metadata"]["schemaString"])
    return _State(
        version,
        {str(item["appId"]): int(item["version"]) for item in checksum["setTransactions"]},
        [str(field["name"]) for field in json.loads(schema)["fields"]],
        schema,
        FORGETS in (checksum["metadata"].get("configuration") or {}),
    )
