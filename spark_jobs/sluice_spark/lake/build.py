"""The Delta table in which a snapshot is built, and how its files become those of the lake table.

It lies in a folder of the lake table, so that one commit of the lake table can name its files: readers
see the rows from before, or all of the new ones. Owns that such a commit names no file that is missing, has
another size, or could be removed by a VACUUM that has begun, and that the columns have the names in the
files under which they were written. The table's own log is removed when the files have moved, or when
nothing comes of them; files that no version of the lake table has are left to VACUUM. (Delta protocol: Add File,
Deletion Vectors, Column Mapping.)
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote

from pyspark.sql import DataFrame

from sluice import faults
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.describing import Words
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.edit import Edit
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.foreign_commits import vector_file
from sluice_spark.lake.layout import TABLE_PROPERTIES
from sluice_spark.lake.plan import Columns
from sluice_spark.lake.sql import quote
from sluice_spark.lake.table import LakeTable

PREFIX = "sluice-snapshot-"
"""Of the folders' names. VACUUM passes by names that begin with an underscore, and these files it must see."""
LOG = "_delta_log/"
_AT_ONCE = 32
"""Files that are looked for side by side."""
_ENCODED_ID = 20
"""Characters that name a vector's file; what comes before them is its folder."""


class BuildLost(Exception):
    """Why the table that was built is not what its log says."""


def folder_name(app_id: str) -> str:
    """Of the build of one generation of one table in one manifest: no two have the same."""
    return PREFIX + hashlib.sha256(app_id.encode()).hexdigest()[:16]


def part_marker(seq: int, *, its_rows: bool) -> int:
    """Of the chunk of entry `seq`: after the changes up to its moment, and with `its_rows` after those as well."""
    return 2 * seq + its_rows


def entry_of(marker: int) -> int:
    """The entry of the chunk that a `part_marker` names."""
    return marker // 2


@dataclass(frozen=True, slots=True)
class BuildTable:
    """The Delta table `table` in the folder `name` of the lake table whose files are in `folder`. A file of the lake
    table that no version has stays for `vacuum_seconds`. `touched` is kept from part to part, by the folder of the
    lake table. Before something is removed `before_commit` raises when this process may not commit.
    """

    table: LakeTable
    folder: TableFolder
    name: str
    vacuum_seconds: float
    touched: dict[str, Any]
    before_commit: Callable[[], None]

    @property
    def path(self) -> str:
        """Its own folder below the lake, with its slash."""
        return f"{self.folder.name}{self.name}/"

    def rows(self, columns: Columns) -> DataFrame:
        """The columns (name, Spark type) of the version at which it stands."""
        table = self.table
        frame = table.session.read.format("delta").option("versionAsOf", table.place.version).load(table.path)
        return frame.select(*(quote(name) for name, _ in columns))

    def clear(self, *, is_table: bool) -> None:
        """Removes what earlier builds left that came to nothing: their logs, and where there is no lake table
        (`is_table`) their files as well, which VACUUM will never see. Raises StoreError.
        """
        found = [path for path in self.folder.paths() if path.startswith(PREFIX) and not self._is_own(path)]
        unfinished = {path.split("/", 1)[0] for path in found if f"/{LOG}" in path}
        for path in found:
            if path.split("/", 1)[0] in unfinished and (not is_table or f"/{LOG}" in path):
                self._delete(path)

    def _is_own(self, path: str) -> bool:
        return path.startswith(f"{self.name}/")

    def require_files(self) -> list[dict[str, Any]]:
        """The actions that added its files, as of the version where it stands, which are all there. Raises
        BuildLost.
        """
        built = DeltaTransaction(self.table.session, self.table.path, newest=self.table.place.version)
        if built.version != self.table.place.version:
            raise BuildLost(f"it is at version {built.version}, and was looked at in {self.table.place.version}")
        adds = list(built.files())
        wanted: dict[str, int] = {}
        for add in adds:
            wanted[unquote(add["path"])] = int(add["size"])
            if vector := vector_file(add.get("deletionVector") or {}):
                wanted.setdefault(vector, -1)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="files") as pool:
            sizes = pool.map(lambda path: self.folder.size(f"{self.name}/{path}"), wanted)
            for size, expected in zip(sizes, wanted.values(), strict=True):
                if size is None or expected not in (-1, size):
                    raise BuildLost("a file of it is missing, or has another size than its log says")
        return adds

    def forget(self) -> None:
        """Removes its log. Raises StoreError."""
        for path in list(self.folder.paths(f"{self.name}/{LOG}")):
            self._delete(path)

    def _delete(self, path: str) -> None:
        self.before_commit()
        self.folder.delete(path)


class Exchange:
    """An edit that makes the lake table of the files of `build`, as they are in the version where it stands. They stay
    those of the build when it is refused.
    """

    way: ClassVar[str] = ""

    def __init__(self, build: BuildTable, words: Words | None) -> None:
        """A lake table that is not there yet says what `words` are."""
        self._build, self._words = build, words

    def edit(self, base: DeltaTransaction) -> Edit:
        """See Maker. Raises NotDirect when the lake table cannot have these files, BuildLost when they are not there,
        StoreError.
        """
        build, is_table = self._build, base.version >= 0
        built = DeltaTransaction(build.table.session, build.table.path, newest=build.table.place.version)
        adds = build.require_files()
        edit = Edit(base, "overwrite", reads=is_table)
        if is_table:
            base.layout()
            self._require_young(adds, seconds=min(base.retention_seconds(), build.vacuum_seconds) / 2)
            edit.removes += [LiveFile.of(add).add for add in base.files()]
        base.take_columns(built, properties=TABLE_PROPERTIES, words=self._words)
        files = [LiveFile.of(_below(build.name, add)) for add in adds]
        rows = sum(file.rows - file.removed_rows for file in files)
        edit.written = Written(files, rows, sum(int(file.add["size"]) for file in files))
        faults.point("apply.exchange.prepared")
        return edit

    @staticmethod
    def _require_young(adds: Sequence[Mapping[str, Any]], *, seconds: float) -> None:
        oldest = min((int(add["modificationTime"]) for add in adds), default=0) / 1000
        if adds and time.time() - oldest > seconds:
            raise NotDirect("its files are so old that a VACUUM may remove them")


def _below(name: str, add: Mapping[str, Any]) -> Mapping[str, Any]:
    """The action that adds the file of a table in the folder `name` to the table around it."""
    moved = {**add, "path": f"{name}/{add['path']}", "dataChange": True}
    vector = add.get("deletionVector")
    if vector and vector["storageType"] == "u":
        place = vector["pathOrInlineDv"]
        if len(place) != _ENCODED_ID:
            raise NotDirect("a deletion vector lies in a folder of its own")
        moved["deletionVector"] = {**vector, "pathOrInlineDv": name + place}
    elif vector:
        raise NotDirect("a deletion vector is not in a file below the table")
    return moved
