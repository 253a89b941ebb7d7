"""What the stream cannot show: tables that join or leave the publication, rewrites without events,
renamed labels.

Invariant: a change that the catalog shows and the stream does not turns the table stale by name;
one that changes nothing in the rows (VACUUM FULL, ANALYZE, an index) does not. What a look means
for a table is decided by `FollowedTables.look`. Runs in a thread, on a session of its own.
"""

from collections.abc import Callable

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.reasons import unpublished
from sluice.contract.table_state import State
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.ingest.tables.forgetting import Forgetting
from sluice.ingest.tables.register import differs
from sluice.ingest.tables.requests import Requests
from sluice.manifest.state import PipelineState, TableState
from sluice.source.catalog import Catalog
from sluice.source.lazy_session import LazySession
from sluice.source.published_tables import PublishedTables
from sluice.source.sessions import Connection, KnownSource
from sluice.store.base import ObjectStore

SETTLED = (State.LIVE, State.SNAPSHOT)
"""States in which the same facts say the same at the next look. In the others time, or the stream,
may have brought what was waited for.
"""


class CatalogWatch:
    """Compares the catalog with the manifest each time `run_once` is called, and carries out the
    requests that wait in `store`. A look costs the server, and us, by what changed since the last one.
    """

    def __init__(
        self, options: KnownSource, tables: FollowedTables, store: ObjectStore, *, state: Callable[[], PipelineState]
    ) -> None:
        """`state` is that of the manifest."""
        self._publication = options.publication
        self._session = LazySession(options)
        self._published = PublishedTables(options.publication)
        self._tables = tables
        self._forgetting = Forgetting(store, tables, state)
        self.requests = Requests(store, tables, options.publication)
        self._configured = tables.configured
        self._settled: dict[int, tuple[TableFacts, TableState]] = {}
        """By oid: the facts and the state of tables for which a look changed nothing."""

    def run_once(self) -> None:
        """One look. Raises SourceUnavailable when the connection is lost; the next call opens
        another.
        """
        self._session.ask(self._look)

    def close(self) -> None:
        self._session.close()

    def _look(self, connection: Connection) -> None:
        if self._tables.configured != self._configured:
            self._configured, self._settled = self._tables.configured, {}
        states = self._tables.states()  # from before the look: what changes meanwhile is judged by the next one
        before_lsn = Catalog(connection).wal_end()
        published = self._published.look(connection)
        wal_end = Catalog(connection).wal_end()
        for table in states.values():
            if int(table.table_id) not in published and table.table_id != messagetable.TABLE_ID:
                self._tables.detach(int(table.table_id), unpublished(self._publication))
        for oid, facts in published.items():  # after those that are gone, whose names and paths they may have
            known = states.get(str(oid))
            before = self._settled.get(oid)
            if before is None or before[0] is not facts or before[1] is not known:
                self._tables.look(facts, known, wal_end=wal_end)
        self._tables.looked(before_lsn=before_lsn)
        self._settled = {
            oid: (facts, state)
            for oid, facts in published.items()
            if (state := states.get(str(oid))) is not None
            and state.state in SETTLED
            and (state.state == State.SNAPSHOT or not differs(state, facts))
            and self._tables.states().get(str(oid)) is state
            and not self._tables.wants_to_move(state)
        }
        self.requests.take(published)
        self._forgetting.turn(Catalog(connection))
