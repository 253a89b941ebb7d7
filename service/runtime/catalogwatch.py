"""What the stream cannot show: tables that join or leave the publication, rewrites without events, renamed labels.

Invariant: a change that the catalog shows and the stream does not turns the table stale by name; one that changes nothing in the rows (VACUUM FULL, ANALYZE,
an index) does not. Runs in a thread, on a connection of its own.
"""

from contextlib import suppress

import structlog

from service.errors import ServiceError
from service.manifest.log import ManifestLog
from service.runtime import messagetable
from service.runtime.requests import Requests
from service.runtime.tables import CARRIED, TableBook
from service.source.catalog import Catalog
from service.source.sessions import SourceOptions, open_query
from service.source.watch import compare, false_nulls, fingerprint


class CatalogWatch:
    """Compares the catalog with the manifest each time `run_once` is called."""

    def __init__(self, options: SourceOptions, log: ManifestLog, book: TableBook, requests: Requests) -> None:
        self._options = options
        self._log = log
        self._book = book
        self._requests = requests
        self._catalog: Catalog | None = None
        self._logger = structlog.get_logger("catalog")

    def run_once(self) -> None:
        """One look. Raises SourceUnavailable when the connection is lost; the next call opens another."""
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
        published = {facts.oid: facts for facts in catalog.published_tables(self._options.publication)}
        self._requests.take(catalog)
        for facts in published.values():
            state = self._book.states().get(str(facts.oid))
            if state is None:
                self._book.join(facts)
            elif state.state in CARRIED and (state.relfilenode, state.fingerprint) != (facts.relfilenode, fingerprint(facts)):
                reason = compare(state.relfilenode, state.fingerprint, facts) if state.state == "live" else false_nulls(facts)
                if reason:
                    self._book.mark_stale(facts.oid, reason, lsn=self._log.state.through_lsn)
                else:
                    self._book.note_catalog(facts)
        for state in tuple(self._book.states().values()):
            if int(state.table_id) not in published and state.state in CARRIED and state.table_id != messagetable.TABLE_ID:
                self._book.detach(int(state.table_id), f"publication {self._options.publication} no longer carries it")
