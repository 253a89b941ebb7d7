"""Tables that were dropped leave the manifest's state, except for a remainder of a few hundred bytes.

Invariant: a table is forgotten when nothing can refer to it any more. Then the source does not have
it, so that no look finds it again. Pruning has passed the entry by which it left, so that no window of
it is under way or will be. No prepared transaction has rows of it. And the manifest is complete through
a position of the server that was read after it left: its rows are encoded for commits that were
received before that, and every later entry holds later commits only. A process that ends in
between looks again from the beginning.
"""

import time
from collections.abc import Callable

import structlog

from sluice import faults
from sluice.contract.table_state import State
from sluice.errors import ServiceError
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.manifest import horizon
from sluice.manifest.values import PipelineState, TableState
from sluice.source.catalog import Catalog
from sluice.store.base import ObjectStore
from sluice.tables import events
from sluice.tables import messages as messagetable

LOOK_SECONDS = 60.0
"""Between two looks for tables that are gone: each asks the server, and the store for its horizon."""
AT_ONCE = 100
"""Each takes an entry, and the catalog is not looked at meanwhile."""


class Forgetting:
    """For the thread of the catalog watch. `state` is that of the manifest."""

    def __init__(
        self,
        store: ObjectStore,
        tables: FollowedTables,
        state: Callable[[], PipelineState],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tables = tables
        self._state = state
        self._clock = clock
        self._next_look = float("-inf")
        self._left: dict[tuple[str, int], int] = {}
        """By id and the entry by which it left: a position of the server from after that."""
        self._logger = structlog.get_logger("tables")

    def turn(self, catalog: Catalog) -> None:
        """Forgets tables for which it is time, if a look is due. Raises SourceError, and what
        `ManifestLog.append` raises.
        """
        state, now = self._state(), self._clock()
        left = [table for table in state.tables.values() if _has_left(table)]
        if not left or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        there = catalog.existing([int(table.table_id) for table in left])
        gone = [table for table in left if int(table.table_id) not in there]
        wal_end = catalog.wal_end()  # after the state was read, and so after they left
        self._left = {_key(table): self._left.get(_key(table), wal_end) for table in gone}
        prepared = {part.segment.table_id for transaction in state.prepared.values() for part in transaction.parts}
        passed = [
            table for table in gone if self._left[_key(table)] <= state.through_lsn and table.table_id not in prepared
        ]
        through_seq = self._pruned_through() if passed else 0
        for table in [table for table in passed if table.stated_seq <= through_seq][:AT_ONCE]:
            faults.point("forget.before")
            self._logger.info("a dropped table is forgotten", table=table.source_name)
            self._tables.decide(events.TableGone(int(table.table_id), None))

    def _pruned_through(self) -> int:
        """Nothing depends on it but space: what is doubtful is left to those who prune."""
        try:
            return horizon.newest(self._store).through_seq
        except ServiceError as error:
            self._logger.warning("dropped tables are not forgotten for now", error=str(error), hint=error.hint)
            return 0


def _has_left(table: TableState) -> bool:
    return table.state == State.DETACHED and not table.is_forgotten and table.table_id != messagetable.TABLE_ID


def _key(table: TableState) -> tuple[str, int]:
    return table.table_id, table.stated_seq
