"""From a table of the manifest to its Delta table: the path, the name of its marker, the objects to
work with.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from pyspark.sql import SparkSession

from sluice.manifest.reader import identity
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice_spark import storage
from sluice_spark.lake.build import BuildTable, entry_of, folder_name
from sluice_spark.lake.commit_way import DIRECT
from sluice_spark.lake.direct.commit import DirectTable
from sluice_spark.lake.direct.key_cache import KeyCache
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.entry_hashes import EntryHashes
from sluice_spark.lake.evolution import columns_sha256
from sluice_spark.lake.examined_version import OURS, ExaminedVersion
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.foreign_commits import ABSENT
from sluice_spark.lake.log_tail import LogTail
from sluice_spark.lake.log_upkeep import LogUpkeep
from sluice_spark.lake.rows_to_commit import SCRATCH, SparkHandover, forget_scratch
from sluice_spark.lake.table import LakeTable
from sluice_spark.lake.warm_up import warm_up
from sluice_spark.options import AUTO, ApplyOptions
from sluice_spark.spool import opened

FILES_KEPT = 50_000
"""Data files whose actions are kept in memory, over all tables: about two kilobytes each."""


def application_id(pipeline: str, state: TableState, *, manifest: str) -> str:
    """The name of the marker of one generation of one lake table in one manifest.

    A spool that was lost begins again with entry 1, under the same names: what an older manifest's
    marker says must not hold for it.
    """
    return f"{OURS}{pipeline}/{state.key}/{state.generation}/{manifest}"


def _shape_of(state: TableState, version: int) -> str:
    """The hash of the columns of schema version `version`, ABSENT if the manifest does not have it."""
    known = state.schemas.get(version)
    return columns_sha256(known.carried) if known is not None else ABSENT


class Lake:
    """The Delta tables of one pipeline, whose spool is in `store`. `before_commit` is called before
    each commit and raises when this process may not commit. `keys` are those kept for all of them.
    """

    def __init__(self, options: ApplyOptions, store: ObjectStore, *, before_commit: Callable[[], None]) -> None:
        self._options = options
        self._store = store
        self.require_owner = self._before_commit = before_commit
        self.files = opened(options.lake)
        """All that lies below the lake's address."""
        self.entries = EntryHashes(store)
        self.keys = KeyCache(options.key_cache_bytes)
        self._direct: OrderedDict[str, DirectTable] = OrderedDict()
        self._lock = threading.Lock()
        self._touched: dict[str, Any] = {}
        self._beginnings: dict[str, str] = {}

    @cached_property
    def manifest(self) -> str:
        """What tells the manifest that is followed from every other one."""
        # Not at the start: the applier may start before the manifest has an entry.
        return identity(self._store)

    def reconfigure(self, options: ApplyOptions) -> None:
        """From now on `options` hold, which lie at the same places."""
        self._options = options

    def log_upkeep(self, state: TableState, session: SparkSession) -> LogUpkeep:
        """The log of the Delta table of `state`, to be kept short in the thread of `session`."""
        path = storage.join(self._options.lake_uri, state.path)
        return LogUpkeep(session, path, store=self.files, folder=f"{state.path}/", require_owner=self._before_commit)

    def table(self, state: TableState, session: SparkSession, *, place: ExaminedVersion | None = None) -> LakeTable:
        """The Delta table of `state` for `session`. `place` is where it last stood, if it was
        seen before.
        """
        path = storage.join(self._options.lake_uri, state.path)
        app_id = application_id(self._options.pipeline, state, manifest=self.manifest)
        return LakeTable(
            session,
            path,
            app_id=app_id,
            before_commit=self._before_commit,
            place=place,
            direct=self._direct_table(state),
            folder=TableFolder(self.files, f"{state.path}/"),
            log=self._log(
                state,
                session,
                path,
                since=place.version if place is not None else -1,
                beginnings=self._beginnings,
            ),
            replaces=self._options.replaces,
            partitions=state.layout.partition_by,
            without=state.layout.without,
            entry_sha256=self.entries.of,
            shape_sha256=partial(_shape_of, state),
        )

    def build(self, state: TableState, session: SparkSession) -> BuildTable:
        """The table in which the snapshot of `state` is built, to be examined for the first time."""
        app_id = application_id(self._options.pipeline, state, manifest=self.manifest)
        name, folder = folder_name(app_id), f"{state.path}/"
        path = storage.join(self._options.lake_uri, f"{folder}{name}")
        table = LakeTable(
            session,
            path,
            app_id=f"{app_id}/snapshot",
            before_commit=self._before_commit,
            log=LogTail(session, path, store=self.files, folder=f"{folder}{name}/", since=-1),
            folder=TableFolder(self.files, f"{folder}{name}/"),
            entry_sha256=lambda marker: self.entries.of(entry_of(marker)),
        )
        vacuum_seconds = self._options.vacuum_after(f"{state.schema_name}.{state.table_name}")
        files = TableFolder(self.files, folder)
        return BuildTable(table, files, name, vacuum_seconds, self._touched, self._before_commit)

    def _log(
        self,
        state: TableState,
        session: SparkSession,
        path: str,
        *,
        since: int,
        beginnings: dict[str, str] | None = None,
    ) -> LogTail:
        folder = f"{state.path}/"
        return LogTail(session, path, store=self.files, folder=folder, since=since, beginnings=beginnings)

    def _direct_table(self, state: TableState) -> DirectTable | None:
        """The same object for the same lake table, which keeps what it knows of its files."""
        name = f"{state.schema_name}.{state.table_name}"
        if self._options.way_of(name) not in (AUTO, DIRECT):
            return None
        folder = f"{state.path}/"
        with self._lock:
            table = self._direct.setdefault(folder, DirectTable(TableFolder(self.files, folder), self.keys))
            self._direct.move_to_end(folder)
            # What is forgotten is read from Delta again.
            while sum(other.files for other in self._direct.values()) > FILES_KEPT and len(self._direct) > 1:
                self._direct.popitem(last=False)[1].joining.close()
            return table

    def unseen(self, state: TableState, session: SparkSession, *, since: int) -> LakeTable:
        """The same, to be examined for the first time and not to be committed to. `since` is the
        version that was last reported, -1 if none was.
        """
        path = storage.join(self._options.lake_uri, state.path)
        return LakeTable(
            session,
            path,
            app_id=application_id(self._options.pipeline, state, manifest=self.manifest),
            before_commit=self._before_commit,
            log=self._log(state, session, path, since=since),
            entry_sha256=self.entries.of,
            shape_sha256=partial(_shape_of, state),
        )

    def outlives(self, state: TableState, session: SparkSession) -> bool:
        """Whether the Delta table of `state` was committed to by another generation, or for another source table, than
        the one that it is for now: its rows may be older than the snapshot. Raises ApplyError, UnsupportedChange.
        """
        path = storage.join(self._options.lake_uri, state.path)
        own = f"{application_id(self._options.pipeline, state, manifest=self.manifest)}/"
        with translated_errors():
            log = self._log(state, session, path, since=-1)
            app_ids = log.app_ids() if log.update() >= 0 else []
        return any(one.startswith(OURS) and not f"{one}/".startswith(own) for one in app_ids)

    def schema_json(self, state: TableState, session: SparkSession, *, since: int) -> str:
        """The columns of the newest version of the Delta table of `state`, as its log has them. `since` is a version
        that it had. Empty where there is no table. Raises ApplyError, UnsupportedChange.
        """
        log = self._log(state, session, storage.join(self._options.lake_uri, state.path), since=since)
        with translated_errors():
            return log.schema_json() if log.update() >= 0 else ""

    def handover(self, session: SparkSession) -> SparkHandover:
        """The way of rows to `session`."""
        options = self._options
        return SparkHandover(session, self._store, path=options.scratch_path, memory=options.max_memory_bytes)

    def warm_up(self, session: SparkSession) -> None:
        """Runs what windows will run, in a table of its own below the scratch of the spool, which
        executors see wherever they are. Raises ApplyError, StoreError.
        """
        folder = f"{SCRATCH}warm-up/{uuid.uuid4().hex}"
        path = f"{self._options.scratch_path}/{folder}"
        try:
            with translated_errors():
                warm_up(session, path, store=self._store, folder=f"{folder}/", require_owner=self._before_commit)
        finally:
            for key in list(self._store.list(f"{folder}/")):
                self._store.delete(key)

    def close(self) -> None:
        """Removes what is kept on local disk, and files that no table took in. For the end of the process."""
        for table in self._direct.values():
            table.joining.close()
        self.keys.close()

    def forget_scratch(self) -> None:
        """Deletes the rows that a killed applier was handing over. Only for the owner of the
        pipeline: a process that still reads them has been replaced.
        """
        forget_scratch(self._store)
