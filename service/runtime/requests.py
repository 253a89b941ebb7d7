"""Requests of operators, taken from `control/` and carried out by the one writer of the manifest.

Invariant: a request is removed only after what it asked for is in the manifest, or after it turned out to be impossible, which is logged and left as a
refusal below `control/refused/`, where every report finds it. Doing one twice is harmless: a second copy follows the first.
"""

from datetime import UTC, datetime

import structlog

from service.contract import keys
from service.contract.control import Refusal, Request
from service.errors import FormatTooNew, ManifestCorrupt, ObjectMissing, ServiceError, UsageError
from service.health.verdict import REFUSAL_SECONDS
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
        found = tuple(self._store.list(keys.CONTROL))
        for key in found:
            if key.startswith(keys.REFUSED):
                self._forget_old(key)
                continue
            try:
                request = Request.decode(self._store.get(key))
            except ObjectMissing:
                continue
            except (FormatTooNew, ManifestCorrupt) as error:
                self._refuse(key, "a request of unknown form", error)
            else:
                self._carry_out(key, request, catalog, refused=[one for one in found if one.startswith(keys.REFUSED)])
            self._store.delete(key)

    def _carry_out(self, key: str, request: Request, catalog: Catalog, *, refused: list[str]) -> None:
        name = f"{request.schema_name}.{request.table_name}"
        try:
            self._copy(request, catalog, name)
        except UsageError as error:
            self._refuse(key, name, error)
            return
        for older in refused:
            seen = self._refusal(older)
            if seen is not None and seen.table == name:
                self._store.delete(older)

    def _copy(self, request: Request, catalog: Catalog, name: str) -> None:
        found = [facts for facts in catalog.published_tables(self._publication) if (facts.schema, facts.name) == (request.schema_name, request.table_name)]
        if not found:
            raise UsageError(f"publication {self._publication} does not carry table {name}", hint=f"add it to the publication, then `sluice copy {name}`")
        facts = found[0]
        if not self._book.selected(facts.schema, facts.name):
            raise UsageError(f"source.tables leaves table {name} out", hint="add it to source.tables and restart ingest")
        if self._book.request_copy(facts):
            self._logger.info("table is copied again", table=name)
        elif (state := self._book.states()[str(facts.oid)]).state == "quarantined":
            raise UsageError(f"table {name} cannot be carried: {state.reason}", hint="mend that; the table is then copied by itself")

    def _refuse(self, key: str, name: str, error: ServiceError) -> None:
        self._logger.error("request refused", table=name, error=str(error), hint=error.hint)
        refusal = Refusal(name, str(error), error.hint, datetime.now(UTC).isoformat(timespec="seconds"))
        self._store.put(keys.refused_request(key), refusal.encode())

    def _refusal(self, key: str) -> Refusal | None:
        """None for one that is gone or cannot be read: a refusal is for people, and never stops ingest."""
        try:
            return Refusal.decode(self._store.get(key))
        except (ObjectMissing, FormatTooNew, ManifestCorrupt):
            return None

    def _forget_old(self, key: str) -> None:
        seen = self._refusal(key)
        if seen is None or (datetime.now(UTC) - datetime.fromisoformat(seen.refused_at)).total_seconds() > REFUSAL_SECONDS:
            self._store.delete(key)
