"""What a commit does to the files of a table, as a value: the actions of Delta's log, and the words of its history.

An edit is made on one version of the table by whoever knows its rows (this process, the executors, a table that was
built beside), and committed or refused in one place, `sluice_spark.lake.table`. (Delta protocol: Add File and Remove
File, Per-file Statistics.)
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pyspark.sql import SparkSession

from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.followed_rows import action
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import TableLayout
from sluice_spark.phases import Phases

_TRACKED = ("baseRowId", "defaultRowCommitVersion")
_WIDE, _TIGHT = '"tightBounds":false}', '"tightBounds":true}'


@dataclass(slots=True)
class Edit:
    """`operation` is append, overwrite, merge or optimize, and with `reads` the edit follows from the table's rows.

    `written` are the new data files, with their rows and bytes. `marked` are files of the version that get another
    vector, and `removes` the actions that had added those that go; a file that is marked is among both. Of `source` net
    changes `matched` found a row, and `deleted` of them had no other one for it. `replaced` are the actions that name
    the rows that went, on a table with a change data feed.

    `marker` is set by the table that commits it, and `refused` once it is known that no version has any of its files;
    `orphans` are the paths of those that are deleted then. `layout` is the one of the version (None: the edit changes
    it). `seconds` is the time that it took: `find` looked for the rows that go, `write` made and stored files.
    """

    base: DeltaTransaction = field(repr=False, compare=False)
    operation: str
    reads: bool
    layout: TableLayout | None = field(default=None, repr=False)
    written: Written = field(default_factory=Written)
    marked: list[LiveFile] = field(default_factory=list)
    removes: list[Mapping[str, Any]] = field(default_factory=list)
    replaced: list[Mapping[str, Any]] = field(default_factory=list)
    marker: tuple[str, int] = ("", 0)
    source: int = 0
    matched: int = 0
    deleted: int = 0
    orphans: list[str] = field(default_factory=list)
    refused: bool = False
    seconds: Phases = field(default_factory=Phases)
    settings: ClassVar[Mapping[str, str]] = {}

    @property
    def adds(self) -> list[LiveFile]:
        """Files of the next version that are not as they are in this one."""
        return [*self.written.files, *self.marked]

    @property
    def gone(self) -> list[str]:
        """Paths that the next version does not have."""
        stay = {file.path for file in self.adds}
        return [add["path"] for add in self.removes if add["path"] not in stay]

    @property
    def actions(self) -> list[dict[str, Any]]:
        """In Delta's own spelling."""
        changes = self.operation != "optimize"
        return [
            *({"remove": _removal(add, changes=changes)} for add in self.removes),
            *({"add": dict(file.add)} for file in self.adds),
            *({"cdc": one} for one in self._changes),
        ]

    @property
    def _changes(self) -> list[Mapping[str, Any]]:
        """Where readers find what changed: in all of these files, or in none and by the actions above."""
        if not self.replaced:
            return []
        return [*self.replaced, *(action(file.path, int(file.add["size"])) for file in self.written.files)]

    @property
    def metrics(self) -> dict[str, int]:
        """In the words of Delta's history."""
        added, rows, size = len(self.written.files), self.written.rows, self.written.bytes
        gone = len(self.gone)
        if self.operation == "append":
            return {"numFiles": added, "numOutputRows": rows, "numOutputBytes": size}
        if self.operation == "overwrite":
            return {"numFiles": added, "numOutputRows": rows, "numOutputBytes": size, "numRemovedFiles": gone}
        if self.operation == "optimize":
            removed = sum(int(add["size"]) for add in self.removes)
            return {
                "numAddedFiles": added, "numAddedBytes": size, "numRemovedFiles": gone, "numRemovedBytes": removed,
            }  # fmt: skip
        updated = self.matched - self.deleted
        return {
            "operationNumSourceRows": self.source,
            "numTargetRowsInserted": rows - updated,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": self.deleted,
            "numTargetRowsCopied": 0,
            "numTargetFilesAdded": added,
            "numTargetFilesRemoved": gone,
            "numTargetDeletionVectorsAdded": len(self.marked),
            "numTargetDeletionVectorsRemoved": 0,
            "numTargetDeletionVectorsUpdated": 0,
        }

    def run(self, _: SparkSession) -> int:
        """See `sluice_spark.lake.changes_to_commit.Change`."""
        return self.base.commit(
            self.actions, marker=self.marker, operation=self.operation, metrics=self.metrics, reads=self.reads
        )


class Maker(Protocol):
    """Whoever makes an edit anew for each version that it is tried on. `way` names how that is done."""

    way: ClassVar[str]

    def edit(self, base: DeltaTransaction) -> Edit | None:
        """What to commit on top of the version that `base` read, None: nothing. Whatever was made before was refused.
        Raises NotDirect when the table cannot be committed to in this way; nothing is left then.
        """


def _removal(add: Mapping[str, Any], *, changes: bool) -> dict[str, Any]:
    """The action that removes the file that `add` added."""
    kept = ("path", "partitionValues", "size", "stats", "tags", "deletionVector", *_TRACKED)
    return {
        **{name: add[name] for name in kept if add.get(name) is not None},
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": changes,
        "extendedFileMetadata": True,
    }


def with_vector(add: Mapping[str, Any], descriptor: Mapping[str, Any]) -> dict[str, Any]:
    """The action that adds a file again with other rows removed. Raises NotDirect."""
    stats = _with_wide_bounds(add["stats"])
    return {**add, "deletionVector": dict(descriptor), "stats": stats, "dataChange": True}


def _with_wide_bounds(stats: str) -> str:
    """Statistics of a file with a vector: its bounds may be those of removed rows."""
    if stats.endswith(_WIDE):
        return stats
    if stats.endswith(_TIGHT):
        return stats.removesuffix(_TIGHT) + _WIDE
    if '"tightBounds"' in stats:
        raise NotDirect("a data file has statistics in another form")
    return f"{stats.rstrip()[:-1]},{_WIDE}"
