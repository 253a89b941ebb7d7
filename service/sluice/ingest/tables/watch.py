"""What the stream cannot show: tables that join or leave the publication, rewrites without events,
renamed labels.

Invariant: a change that the catalog shows and the stream does not turns the table stale by name;
one that changes nothing in the rows (VACUUM FULL, ANALYZE, an index) does not. What a look means
for a table is decided by `TableBook.look`. Runs in a thread, on a session of its own.
"""

from sluice.contract.table_state import State
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.book import TableBook
from sluice.ingest.tables.requests import Requests
from sluice.source.catalog import Catalog
from sluice.source.lazy_session import LazySession
from sluice.source.sessions import Connection, SourceOptions
from sluice.store.base import ObjectStore


class CatalogWatch:
    """Compares the catalog with the manifest each time `run_once` is called, and carries out the
    requests that wait in `store`.
    """

    def __init__(self, options: SourceOptions, book: TableBook, store: ObjectStore) -> None:
        self._publication = options.publication
        self._session = LazySession(options)
        self._book = book
        self._requests = Requests(store, book, options.publication)

    def run_once(self) -> None:
        """One look. Raises SourceUnavailable when the connection is lost; the next call opens
        another.
        """
        self._session.ask(self._look)

    def close(self) -> None:
        self._session.close()

    def _look(self, connection: Connection) -> None:
        catalog = Catalog(connection)
        states = self._book.states()  # from before the look: what changes meanwhile is judged by the next one
        published = {facts.oid: facts for facts in catalog.published_tables(self._publication)}
        wal_end = catalog.wal_end()
        for oid, facts in published.items():
            self._book.look(facts, states.get(str(oid)), wal_end=wal_end)
        for state in states.values():
            if (
                int(state.table_id) not in published
                and state.state != State.DETACHED
                and state.table_id != messagetable.TABLE_ID
            ):
                self._book.detach(int(state.table_id), f"publication {self._publication} no longer carries it")
        self._requests.take(catalog)
