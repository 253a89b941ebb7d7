"""Requests of operators, taken from `control/` and carried out by the one writer of the manifest.

Invariant: a request is removed only after what it asked for is in the manifest, or after it turned
out to be impossible, which is logged and left as a refusal below `control/refused/`, where every
report finds it. Doing one twice is harmless: a second copy follows the first. Whatever else lies
below `control/` stops nothing: it is named in the log once and left alone.
"""

from datetime import UTC, datetime

import structlog

from sluice.contract import keys
from sluice.contract.control import REFUSAL_SECONDS, Refusal, Request
from sluice.contract.table_state import State
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing, ServiceError, StoreRefused, UsageError
from sluice.ingest.tables.book import TableBook
from sluice.source.catalog import Catalog
from sluice.store.base import ObjectStore


class Requests:
    """Looks at `control/` whenever the catalog is looked at."""

    def __init__(self, store: ObjectStore, book: TableBook, publication: str) -> None:
        self._store = store
        self._book = book
        self._publication = publication
        self._left_alone: set[str] = set()
        self._logger = structlog.get_logger("control")

    def take(self, catalog: Catalog) -> None:
        """Carries out what waits. Raises SourceError and StoreUnavailable, after which the request
        is still there.
        """
        listed = tuple(self._store.list(keys.CONTROL))
        self._left_alone.intersection_update(listed)
        found = []
        for key in listed:
            if keys.is_control(key):
                found.append(key)
            else:
                self._leave_alone(key, "it is not the name of a request")
        refused = [key for key in found if key.startswith(keys.REFUSED)]
        for key in found:
            # One that the store would not let go of was carried out before.
            if key in self._left_alone:
                continue
            if key in refused:
                self._forget_old(key)
            else:
                self._take_one(key, catalog, refused=refused)

    def _leave_alone(self, key: str, reason: str) -> None:
        if key not in self._left_alone:
            self._left_alone.add(key)
            self._logger.warning(
                "an object below control/ is left alone", key=ascii(key[:200]), reason=reason, hint="remove it"
            )

    def _read(self, key: str) -> bytes | None:
        """None for one that is gone, or that the store does not give."""
        try:
            return self._store.get(key)
        except ObjectMissing:
            return None
        except StoreRefused as error:
            self._leave_alone(key, str(error))
            return None

    def _remove(self, key: str) -> None:
        try:
            self._store.delete(key)
        except StoreRefused as error:
            self._leave_alone(key, str(error))

    def _take_one(self, key: str, catalog: Catalog, *, refused: list[str]) -> None:
        data = self._read(key)
        if data is None:
            return
        try:
            request = Request.decode(data)
        except (FormatTooNew, ManifestCorrupt) as error:
            self._refuse(key, "a request of unknown form", error)
        else:
            self._carry_out(key, request, catalog, refused=refused)
        self._remove(key)

    def _carry_out(self, key: str, request: Request, catalog: Catalog, *, refused: list[str]) -> None:
        name = f"{request.schema_name}.{request.table_name}"
        try:
            self._resync(request, catalog, name)
        except UsageError as error:
            self._refuse(key, name, error)
            return
        for older in refused:
            seen = self._refusal(older)
            if seen is not None and seen.table == name:
                self._remove(older)

    def _resync(self, request: Request, catalog: Catalog, name: str) -> None:
        found = [
            facts
            for facts in catalog.published_tables(self._publication)
            if (facts.schema, facts.name) == (request.schema_name, request.table_name)
        ]
        if not found:
            raise UsageError(
                f"publication {self._publication} does not carry table {name}",
                hint=f"add it to the publication, then `sluice resync {name}`",
            )
        facts = found[0]
        if not self._book.selected(facts.schema, facts.name):
            raise UsageError(
                f"source.tables leaves table {name} out", hint="add it to source.tables and restart ingest"
            )
        if self._book.request_snapshot(facts):
            self._logger.info("table is read again from a new snapshot", table=name)
        elif (state := self._book.states()[str(facts.oid)]).state == State.QUARANTINED:
            raise UsageError(
                f"table {name} cannot be carried: {state.reason}", hint="fix that; the table is then read by itself"
            )

    def _refuse(self, key: str, name: str, error: ServiceError) -> None:
        self._logger.error("request refused", table=name, error=str(error), hint=error.hint)
        refusal = Refusal(name, str(error), error.hint, datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            self._store.put(keys.refused_request(key), refusal.encode())
        except StoreRefused as failed:
            self._leave_alone(keys.refused_request(key), str(failed))

    def _refusal(self, key: str) -> Refusal | None:
        """None for one that is gone or cannot be read: a refusal is for people, and never stops
        ingest.
        """
        data = self._read(key)
        try:
            return Refusal.decode(data) if data is not None else None
        except (FormatTooNew, ManifestCorrupt):
            return None

    def _forget_old(self, key: str) -> None:
        seen = self._refusal(key)
        if key in self._left_alone:
            return
        if (
            seen is None
            or (datetime.now(UTC) - datetime.fromisoformat(seen.refused_at)).total_seconds() > REFUSAL_SECONDS
        ):
            self._remove(key)
