"""Where a lake table is read for a question: the version, and the changes that it lacks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from sluice.contract import envelope
from sluice.contract.evolution import identified_alike
from sluice.contract.row_form import LakeQuestion
from sluice.contract.table_state import State
from sluice.errors import ApplyError, ManifestCorrupt
from sluice.manifest.reader import identity, objects_pruned_through
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_spark import storage
from sluice_spark.fold.spill import Versioned
from sluice_spark.kinds.registry import other_kind
from sluice_spark.lake.log import LakeLog
from sluice_spark.lake.opening import application_id
from sluice_spark.lake.sql import quote
from sluice_spark.options import ApplyOptions
from sluice_spark.read.projection import Projection
from sluice_spark.verify.version import POLL_SECONDS, NotThere, Version, changes_in, find_version, segments_until

APPLIER_SECONDS = 10.0
"""How long to wait for the applier to come nearer to a position."""
MOST_TASKS = 512
"""Of one scan: each answers with the sums of all ranges, 1 MB of a large table, and Spark takes 1 GB of answers."""


@dataclass(frozen=True, slots=True)
class Position:
    """A version of a lake table, and the changes after it up to the position asked about."""

    version: Version
    changes: list[Versioned]


class Positions:
    """Finds them for the tables of one pipeline, whose spool is in `store`."""

    def __init__(self, options: ApplyOptions, store: ObjectStore, session: SparkSession) -> None:
        self._options = options
        self._store = store
        self._session = session
        self._lake = open_store(options.lake_uri, options=options.lake_options)

    def find(self, state: TableState, question: LakeQuestion) -> Position:
        """Waits a moment for the applier where that makes the changes fewer that are not in the lake, and all the
        time of the question where it cannot be answered before. Raises ApplyError when the table has to come
        further, or is not what was asked about any more.
        """
        _require_unchanged(state, question)
        began = time.monotonic()
        deadline = began + min(question.wait_seconds, APPLIER_SECONDS)
        while True:
            version = find_version(
                self._store,
                self._lake,
                state,
                pipeline=self._options.pipeline,
                lsn=question.lsn,
                before=question.before,
                marker_now=lambda: self._marker_now(state),
            )
            try:
                with self._not_pruned(version):
                    segments = segments_until(self._store, state, after_seq=version.after_seq, lsn=question.lsn)
                if not segments or not version.newest or time.monotonic() > deadline:
                    break
            except NotThere:
                if time.monotonic() > began + question.wait_seconds:
                    raise
            time.sleep(POLL_SECONDS)
        limit = self._options.max_memory_bytes
        with self._not_pruned(version):
            changes = list(
                changes_in(self._store, state, segments, after_seq=version.after_seq, lsn=question.lsn, limit=limit)
            )
        if any(schema.version > question.schema_version for _, schema in changes):
            raise ApplyError("its columns changed meanwhile")
        target = state.schemas[question.schema_version].carried
        if not all(identified_alike(schema, target) for _, schema in changes):
            raise ApplyError(
                "its key changed, and changes from before are not in the lake yet",
                hint="try again when the applier has caught up",
            )
        projections = [(rows, Projection(schema, target)) for rows, schema in changes]
        return Position(version, [(one.of(rows), one.schema) for rows, one in projections])

    @contextmanager
    def _not_pruned(self, version: Version) -> Iterator[None]:
        """Nothing holds the spool back for a comparison: what is missing may have been applied and pruned meanwhile."""
        try:
            yield
        except ManifestCorrupt as error:
            if objects_pruned_through(self._store) > version.after_seq:
                raise ApplyError(
                    "changes that a version as of the position lacks were applied and pruned meanwhile",
                    hint="try again; a longer spool.retention keeps them",
                ) from error
            raise

    def _marker_now(self, state: TableState) -> tuple[int, int | None]:
        log = LakeLog(self._session, self._path(state))
        app_id = application_id(self._options.pipeline, state, manifest=identity(self._store))
        return log.update(), log.marker(app_id)

    def rows(
        self, state: TableState, version: Version, names: list[str], present: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        """The columns `names` of a version, under names of their own, of those of its rows that are `present`. Columns
        of the envelope that the table lacks are left out of `names`. Marked values come as JSON: see `scan.typed`. A
        table of any size has at most MOST_TASKS partitions.
        """
        frame = self._session.read.format("delta").option("versionAsOf", version.number).load(self._path(state))
        held = set(frame.columns)
        if (other := other_kind(state, held)) is not None:
            # An edited configuration, and that of a table's new name, holds from the next start of the applier on.
            kinds = other.parameters
            raise ApplyError(
                f"the lake table is a {kinds['held']}, and the configuration asks for a {kinds['wanted']}",
                hint="start the applier again, and verify what it makes of that",
            )
        for name in list(names):
            if name == envelope.SPECIAL and name not in held:
                names.remove(name)
            elif name not in held:
                raise ApplyError(f"version {version.number} of the lake table has no column {name!r} yet")
        frame = present(frame)
        texts = (f"to_json({quote(name)})" if name == envelope.SPECIAL else quote(name) for name in names)
        chosen = frame.select(*(sql.expr(text).alias(f"c{place}") for place, text in enumerate(texts)))
        return chosen.coalesce(MOST_TASKS)

    def _path(self, state: TableState) -> str:
        return storage.join(self._options.lake_uri, state.path)


def _require_unchanged(state: TableState, question: LakeQuestion) -> None:
    """Raises ApplyError when the table is not what was asked about any more."""
    at_gap = state.gap is not None and state.state == State.GAP and question.lsn == state.gap.from_lsn
    if not (state.state.has_initial_rows or at_gap) or state.snapshot is None or not state.snapshot.final:
        raise ApplyError(f"it is {state.state} by now")
    if (state.generation, state.schema_version) != (question.generation, question.schema_version):
        raise ApplyError("it was read again from a new snapshot, or its columns changed, meanwhile")
