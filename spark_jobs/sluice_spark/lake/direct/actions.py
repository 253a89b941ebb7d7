"""What a commit does to the files of a table, as the actions of Delta's log and in the words of its history.

(Delta protocol: Add File and Remove File, Per-file Statistics.)
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.phases import Phases

_WIDE, _TIGHT = '"tightBounds":false}', '"tightBounds":true}'


@dataclass(slots=True)
class Prepared:
    """Everything that a commit needs but the marker. `reads` says that it follows from the table's
    rows. `gone` and `files` are what it does to the live files, `written` the new files' paths. `seconds` is the
    time that it took: `find` looked for the rows that go, `write` made and stored files.
    """

    operation: str
    reads: bool
    actions: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    files: list[LiveFile] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    seconds: Phases = field(default_factory=Phases)


class Preparation(Protocol):
    """A window on its way into one commit, worked out anew for each version of the table that it is
    tried on. `way` names how it is committed.
    """

    way: ClassVar[str]

    def prepare(self, transaction: DeltaTransaction) -> Prepared | None:
        """What to commit on top of the version that `transaction` read; None: nothing. Raises
        NotDirect.
        """

    def landed(self, prepared: Prepared, version: int) -> None:
        """`prepared` was committed as `version` (-1: as one that is not known)."""

    def abandon(self, prepared: Prepared) -> None:
        """`prepared` was refused, and no version has its files."""


def removal(add: Mapping[str, Any]) -> dict[str, Any]:
    """The action that removes the file that `add` added."""
    kept = ("path", "partitionValues", "size", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion")
    return {
        **{name: add[name] for name in kept if add.get(name) is not None},
        "stats": add["stats"],
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": True,
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


def metrics(prepared: Prepared, counts: Mapping[str, int], *, vectors: int) -> dict[str, int]:
    """In the words of Delta's history."""
    added = sum(1 for file in prepared.files if not file.add.get("deletionVector"))
    if prepared.operation != "merge":
        found = {"numFiles": added, "numOutputRows": counts["rows"], "numOutputBytes": counts["bytes"]}
        return found if prepared.operation == "append" else {**found, "numRemovedFiles": len(prepared.gone)}
    updated = counts["matched"] - counts["deleted"]
    return {
        "operationNumSourceRows": counts["source"],
        "numTargetRowsInserted": counts["rows"] - updated,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": counts["deleted"],
        "numTargetRowsCopied": 0,
        "numTargetFilesAdded": added,
        "numTargetFilesRemoved": len(prepared.gone),
        "numTargetDeletionVectorsAdded": vectors,
        "numTargetDeletionVectorsRemoved": 0,
        "numTargetDeletionVectorsUpdated": 0,
    }
