"""Requests of operators, taken from `control/` and carried out by the one writer of the manifest.

Invariant: a request is removed only after what it asked for is in the manifest, or after it turned out to be impossible, which is logged. Doing one twice is
harmless: a second copy follows the first.
"""

import structlog

from service.contract import keys
from service.contract.control import Request
from service.errors import FormatTooNew, ManifestCorrupt, ObjectMissing
from service.runtime.tables import TableBook
from service.source.catalog import Catalog
from service.store.base import ObjectStore


class Requests:
    """Looks at `control/` whenever the catalog is looked at."""

    def __init__(self, store: ObjectStore, book: TableBook, publication: str) -> None:
        self._store = store
        self._book = book
        self._publication = publication
        self._logger = structlog.get_logger("control")

    def take(self, catalog: Catalog) -> None:
        """Carries out what waits. Raises SourceError and StoreError, after which the request is still there."""
        for key in tuple(self._store.list(keys.CONTROL)):
            try:
                self._copy(Request.decode(self._store.get(key)), catalog)
            except ObjectMissing:
                continue
            except (FormatTooNew, ManifestCorrupt) as error:
                self._logger.error("request refused", key=key, error=str(error))
            self._store.delete(key)

    def _copy(self, request: Request, catalog: Catalog) -> None:
        name = f"{request.schema_name}.{request.table_name}"
        found = [facts for facts in catalog.published_tables(self._publication) if (facts.schema, facts.name) == (request.schema_name, request.table_name)]
        if not found:
            self._logger.error("table is not copied again: the publication does not carry it", table=name, publication=self._publication)
            return
        if self._book.request_copy(found[0]):
            self._logger.info("table is copied again", table=name)
