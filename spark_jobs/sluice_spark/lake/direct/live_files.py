"""The data files of the newest version of one lake table, kept from commit to commit.

Owns that they are those of the version they are said to be of: our own commit changes them as it changed
the table, and after anybody else's they are read from Delta again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.direct.vectors import Positions
from sluice_spark.lake.layout import TableLayout

_NOTHING: Positions = np.empty(0, dtype=np.int64)
_UNTRACKED: Mapping[str, Mapping[str, int]] = {}


@dataclass(slots=True)
class LiveFile:
    """A data file with the action that added it. `rows` counts those of the file, removed ones
    included; `low` and `high` are bounds by physical name. `removed` are the removed positions,
    ascending, None until they were read. `memory` is what all rows take when they are read, 0 until
    that is known.
    """

    add: Mapping[str, Any]
    rows: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    removed: Positions | None = field(compare=False)
    memory: int = 0

    @staticmethod
    def of(add: Mapping[str, Any], *, removed: Positions | None = None, memory: int = 0) -> "LiveFile":
        """Raises NotDirect when the action does not say how many rows the file has, or when the file or
        its vector lies outside of the table's folder (a shallow clone).
        """
        outside = urlsplit(add["path"]).scheme or add["path"].startswith("/")
        if outside or (add.get("deletionVector") or {}).get("storageType") == "p":
            raise NotDirect("a data file lies outside of the table's folder")
        stated = json.loads(add.get("stats") or "{}")
        if "numRecords" not in stated:
            raise NotDirect("a data file has no statistics")
        if not add.get("deletionVector"):
            removed = _NOTHING
        return LiveFile(
            add, int(stated["numRecords"]), stated.get("minValues", {}), stated.get("maxValues", {}), removed, memory
        )

    @property
    def first_id(self) -> int:
        """The id of the row at position 0 of a table that tracks its rows, as long as the file does not state another
        one. Raises NotDirect when the file has none.
        """
        first = self.add.get("baseRowId")
        if first is None:
            raise NotDirect("a data file has no ids of rows")
        return int(first)

    @property
    def made_by(self) -> int:
        """The version that made its rows, as long as the file does not state another one. Raises NotDirect."""
        version = self.add.get("defaultRowCommitVersion")
        if version is None:
            raise NotDirect("a data file has no version of rows")
        return int(version)

    @property
    def tracked(self) -> tuple[int | None, ...]:
        """What ids and versions of its rows follow from, as far as there is anything."""
        return self.add.get("baseRowId"), self.add.get("defaultRowCommitVersion")

    @property
    def removed_rows(self) -> int:
        """How many rows its vector removes."""
        return int((self.add.get("deletionVector") or {}).get("cardinality", 0))

    @property
    def path(self) -> str:
        """As the log spells it."""
        return str(self.add["path"])


@dataclass(slots=True)
class LiveFiles:
    """The files of `version` by path; -1 before the first look."""

    version: int = -1
    table_id: str = ""
    layout: TableLayout | None = None
    by_path: dict[str, LiveFile] = field(default_factory=dict)

    def __iter__(self) -> Iterator[LiveFile]:
        return iter(self.by_path.values())

    def known(self) -> list[LiveFile]:
        """The files as they are now, from any thread."""
        return list(self.by_path.values())

    def follow(self, transaction: DeltaTransaction) -> TableLayout:
        """Brings the files to the version that `transaction` read. Raises NotDirect."""
        if self.version != transaction.version or self.table_id != transaction.table_id:
            before, self.version = self.by_path, -1
            self.layout = transaction.layout()
            self.by_path = {}
            for add in transaction.files():
                known = before.get(add["path"])
                same_vector = known is not None and known.add.get("deletionVector") == add.get("deletionVector")
                self.by_path[add["path"]] = LiveFile.of(
                    add,
                    removed=known.removed if known is not None and same_vector else None,
                    memory=known.memory if known is not None else 0,
                )
            self.version, self.table_id = transaction.version, transaction.table_id
        elif self.layout is None:
            self.layout = transaction.layout()
        return self.layout

    def begin(self, transaction: DeltaTransaction) -> TableLayout:
        """`transaction` makes the table, which has no file yet. Raises NotDirect."""
        self.version, self.table_id, self.by_path = -1, transaction.table_id, {}
        self.layout = transaction.layout()
        return self.layout

    def landed(
        self,
        version: int,
        *,
        gone: Iterable[str],
        files: Iterable[LiveFile],
        tracked: Mapping[str, Mapping[str, int]] = _UNTRACKED,
    ) -> None:
        """Our commit made `version`: `gone` are paths, `files` new ones or old ones with another
        vector, `tracked` what Delta added to them (`Commit.tracked`).
        """
        if version != self.version + 1:
            # Somebody came in between.
            self.version = -1
            return
        for path in gone:
            del self.by_path[path]
        for file in files:
            if stated := tracked.get(file.path):
                file.add = {**file.add, **stated}
            self.by_path[file.path] = file
        self.version = version

    def columns_landed(self, version: int) -> None:
        """Our commit made `version`, which has the same files, and perhaps other columns or properties."""
        self.version = version if self.version >= 0 and version == self.version + 1 else -1
        self.layout = None
