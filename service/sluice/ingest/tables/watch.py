"""What the stream cannot show: tables that join or leave the publication, rewrites without events,
renamed labels.

Invariant: a change that the catalog shows and the stream does not turns the table stale by name;
one that changes nothing in the rows (VACUUM FULL, ANALYZE, an index) does not. What a look means
for a table is decided by `TableBook.look`. Runs in a thread, on a connection of its own.
"""

from contextlib import suppress

from sluice.contract.table_state import State
from sluice.errors import ServiceError
from sluice.ingest.requests import Requests
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.book import TableBook
from sluice.source.catalog import Catalog
from sluice.source.sessions import SourceOptions, open_query


class CatalogWatch:
    """Compares the catalog with the manifest each time `run_once` is called."""

    def __init__(self, options: SourceOptions, book: TableBook, requests: Requests) -> None:
        self._options = options
        self._book = book
        self._requests = requests
        self._catalog: Catalog | None = None

    def run_once(self) -> None:
        """One look. Raises SourceUnavailable when the connection is lost; the next call opens
        another.
        """
        try:
            self._look(self._catalog or self._open())
        except ServiceError:
            self.close()
            raise

    def close(self) -> None:
        if self._catalog is not None:
            with suppress(ServiceError):
                self._catalog.close()
        self._catalog = None

    def _open(self) -> Catalog:
        self._catalog = Catalog(open_query(self._options))
        return self._catalog

    def _look(self, catalog: Catalog) -> None:
        states = self._book.states()  # from before the look: what changes meanwhile is judged by the next one
        published = {facts.oid: facts for facts in catalog.published_tables(self._options.publication)}
        wal_end = catalog.wal_end()
        for oid, facts in published.items():
            self._book.look(facts, states.get(str(oid)), wal_end=wal_end)
        for state in states.values():
            if (
                int(state.table_id) not in published
                and state.state != State.DETACHED
                and state.table_id != messagetable.TABLE_ID
            ):
                self._book.detach(int(state.table_id), f"publication {self._options.publication} no longer carries it")
        self._requests.take(catalog)
