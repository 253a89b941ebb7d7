"""Rows of live tables read again from the source, because a comparison found that the lake has others.

Invariant: a repair is published only where its rows are known to be unchanged since they were read: the
manifest has passed the position of the snapshot, and nothing between there and the repair's place has
touched their keys. What cannot be had so is read again, and refused by name when that fails again and
again. A request is removed after its repair is in the manifest; doing one twice is harmless.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import structlog

from sluice import faults
from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Changes, Repair, Segment
from sluice.errors import SourceUnavailable, TableUnavailable, UsageError
from sluice.ingest.commit.committer import Committer
from sluice.ingest.snapshot.reader import SnapshotRaced
from sluice.ingest.snapshot.repair_rows import Key, read_again
from sluice.ingest.snapshot.touched_keys import keys_in, truncates
from sluice.lsn import show
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.reader import read_entries
from sluice.manifest.values import PipelineState, TableState
from sluice.source.catalog import Catalog
from sluice.source.sessions import KnownSource, open_query
from sluice.source.snapshot_export import SnapshotHolder
from sluice.store.base import ObjectStore
from sluice.tables.schemas import has_shape

ATTEMPTS = 5
"""At keys that change while they are read."""


class Repairer:
    """Repairs tables of `log`, one request at a time, for one thread."""

    def __init__(
        self,
        options: KnownSource,
        log: OrderedLog,
        store: ObjectStore,
        committer: Committer,
        *,
        epoch: int,
        numbers: Iterator[int],
    ) -> None:
        self._options = options
        self._log = log
        self._store = store
        self._committer = committer
        self._epoch = epoch
        self._numbers = numbers
        self._logger = structlog.get_logger("repair")

    def repair(self, schema_name: str, table_name: str, wanted: Sequence[Key]) -> int:
        """Publishes what the source has for the keys `wanted`, texts of the key's columns; returns how
        many rows that were. Raises UsageError when it cannot be done, SourceUnavailable when it may work
        later.
        """
        for _ in range(ATTEMPTS):
            # Whatever the manifest says of the table behind this moment shows in the entries behind it.
            now = self._log.stored
            state = self._state(now, schema_name, table_name)
            faults.point("repair.begun")
            width = len(state.schemas[state.schema_version].key_columns)
            if not wanted or any(len(key) != width for key in wanted):
                raise UsageError(
                    f"the request names keys that are none of {schema_name}.{table_name}", hint="verify it again"
                )
            facts = self._facts(state)
            try:
                with closing(SnapshotHolder.open(self._options)) as holder:
                    schema = state.schemas[state.schema_version]
                    file = read_again(self._options, schema, facts, holder, wanted)
            except SnapshotRaced:
                continue
            faults.point("repair.taken")
            place = keys.segment(state.table_id, self._epoch, next(self._numbers))
            files = (self._committer.upload(place, schema, file).result(),)
            if self._published(state, files, as_of=holder.consistent_lsn, after_seq=now.seq):
                self._logger.info(
                    "rows were read again",
                    table=facts.qualified_name,
                    rows=file.stats.rows,
                    lsn=show(holder.consistent_lsn),
                )
                return file.stats.rows
        raise UsageError(
            f"the rows of {schema_name}.{table_name} that differ change faster than they can be read again",
            hint="verify the table again, or resync it",
        )

    def _state(self, now: PipelineState, schema_name: str, table_name: str) -> TableState:
        found = [
            state
            for state in now.tables.values()
            if (state.schema_name, state.table_name) == (schema_name, table_name) and state.state.has_initial_rows
        ]
        if not found:
            raise UsageError(f"table {schema_name}.{table_name} is not live", hint="`sluice tables` says why")
        state = found[-1]
        schema = state.schemas[state.schema_version]
        if not schema.is_keyed:
            raise UsageError(
                f"table {schema_name}.{table_name} has no key in its changes by which rows could be repaired",
                hint="resync it",
            )
        return state

    def _facts(self, state: TableState) -> TableFacts:
        """From before the snapshot. Raises SourceUnavailable while the table's shape changes."""
        with closing(Catalog(open_query(self._options))) as catalog:
            facts = catalog.table(int(state.table_id), publication=self._options.publication)
        if facts is None or not has_shape(facts, state.schemas[state.schema_version]):
            raise TableUnavailable(
                f"the columns of {state.schema_name}.{state.table_name} have changed, and the stream "
                "has not reached that change yet"
            )
        return facts

    def _published(self, state: TableState, files: tuple[Segment, ...], *, as_of: int, after_seq: int) -> bool:
        """Whether the repair is in the manifest. False when its keys have changed meanwhile, or the table is
        not what it was.
        """
        if not self._committer.wait_through(as_of):
            raise SourceUnavailable("a repair was stopped", hint="it is done after the next start")
        touched, seen = keys_in(self._store, files, state.schemas), after_seq

        def unchanged(now: PipelineState) -> bool:
            nonlocal seen
            for entry, _ in read_entries(self._store, after_seq=seen, limit=now.seq - seen):
                if isinstance(entry.body, Changes):
                    later = [
                        segment
                        for segment in entry.body.segments
                        if segment.table_id == state.table_id
                        and (segment.body.end_lsn if segment.body is not None else segment.last_lsn) > as_of
                    ]
                    if truncates(later) or touched & keys_in(self._store, later, state.schemas):
                        return False
                if any(table.table_id == state.table_id for table in entry.tables):
                    return False
                if getattr(entry.body, "table_id", "") == state.table_id:
                    return False
            seen = now.seq
            faults.point("repair.append.before")
            return True

        repair = Repair(state.table_id, state.generation, state.schema_version, as_of, as_of, files)
        if not self._append(repair, unchanged):
            return False
        faults.point("repair.append.after")
        return True

    def _append(self, repair: Repair, may_follow: Callable[[PipelineState], bool] = lambda _: True) -> bool:
        """Appends `repair` where the manifest is; False when it may not follow there. Raises ManifestCorrupt when it
        never can.
        """
        # What has come meanwhile is looked at beside the stream. Only what comes during that look is left for the one
        # in front of the entry: on a busy pipeline another entry is always under way.
        if not may_follow(self._log.stored):
            return False

        def standing(now: PipelineState) -> Repair | None:
            return replace(repair, unchanged_through_lsn=now.through_lsn) if may_follow(now) else None

        return self._log.repair(standing) is not None
