"""Requests of operators, taken from `control/` and carried out by the one writer of the manifest: at once,
or behind a look at the catalog where that has to say something.

Invariant: a request is removed only after what it asked for is in the manifest, or after it turned
out to be impossible, which is logged and left as a refusal below `control/refused/`, where every
report finds it. Doing one twice is harmless: a second snapshot follows the first. Whatever else lies
below `control/` stops nothing: it is named in the log once and left alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.control import ADVANCE, PAUSE, REFUSAL_SECONDS, REMOVE, REPAIR, RESUME, RESYNC, Refusal, Request
from sluice.contract.entries import Repair
from sluice.contract.table_state import State
from sluice.errors import (
    FormatTooNew,
    Interrupted,
    ManifestCorrupt,
    ObjectMissing,
    ServiceError,
    SlotLost,
    SourceMoved,
    StoreRefused,
    StoreUnavailable,
    TableUnavailable,
    UsageError,
    WriterFenced,
    may_pass,
)
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice.tables import events
from sluice.telemetry.logs import describe

WAITING = "requests of operators"
"""What waits."""
_OF_THE_PIPELINE = (Interrupted, SlotLost, SourceMoved, WriterFenced)
"""Errors that say nothing about the request which met them. A store that refuses more than its objects ends the stream
by itself.
"""


def said(requests: Iterable[Request]) -> str:
    """What is asked for, in words."""
    return ", ".join(f"{one.action} {one.schema_name}.{one.table_name}" for one in requests)


def waiting_in(store: ObjectStore) -> str:
    """What waits below `control/`, in words. For a process that cannot carry out anything yet. Raises StoreError."""
    found = []
    for key in store.list(keys.CONTROL):
        if keys.is_control(key) and not key.startswith(keys.REFUSED):
            with suppress(ManifestCorrupt, FormatTooNew, ObjectMissing):
                found.append(Request.decode(store.get(key)))
    return said(request for request in found if request.action != ADVANCE)


class Requests:
    """`take_at_once` looks at `control/`, in a thread that waits for no server. `advance` is called with each LSN that
    the manifest is to pass soon.
    """

    def __init__(
        self,
        store: ObjectStore,
        tables: FollowedTables,
        publication: str,
        *,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._advance = advance
        self._tables = tables
        self._publication = publication
        self._left_alone: set[str] = set()
        self._carried_out: set[str] = set()
        """Requests that the store may not have let go of yet."""
        self.repairs: tuple[str, ...] = ()
        """Requests for repairs that waited when `control/` was looked at last: `repair` carries them out."""
        self.waiting: dict[str, Request] = {}
        """Requests, by key, that waited then for a look at the catalog: `take` carries them out."""
        self._refused: list[str] = []
        self._logger = structlog.get_logger("control")

    def take_at_once(self) -> None:
        """Carries out what needs the manifest alone, in the order in which it was asked for, and finds out
        what else waits. Raises StoreUnavailable, after which the request is still there.
        """
        listed = tuple(self._store.list(keys.CONTROL))
        self._left_alone.intersection_update(listed)
        self._carried_out.intersection_update(listed)
        repairs, waiting, later = [], {}, set[tuple[str, str]]()
        self._refused = [key for key in listed if keys.is_control(key) and key.startswith(keys.REFUSED)]
        for key in listed:
            if not keys.is_control(key):
                self._leave_alone(key, "it is not the name of a request")
            elif key in self._carried_out:
                self._remove(key)
            elif key not in self._left_alone and key not in self._refused and (request := self._request(key)):
                if request.action == REPAIR:
                    repairs.append(key)
                elif request.action == ADVANCE:
                    self._take_hint(key, request)
                elif request.action in (PAUSE, RESUME):
                    # Those for one table are carried out in their order, now or later.
                    table = (request.schema_name, request.table_name)
                    if table in later or not self._carry_out(key, request, {}):
                        later.add(table)
                else:
                    waiting[key] = request
        self.repairs, self.waiting = tuple(repairs), waiting

    def take(self, waiting: Mapping[str, Request], published: Mapping[int, TableFacts]) -> None:
        """Carries out those that were `waiting` before a look that was taken into account; `published` are its
        facts, by oid. Raises SourceError and StoreUnavailable, after which the request is still there.
        """
        for key, request in waiting.items():
            # It may have been found once more while it was carried out.
            if key not in self._carried_out and self._read(key) is not None:
                self._carry_out(key, request, published)
            self.waiting.pop(key, None)
        for key in self._refused:
            self._forget_old(key, published)

    def repair(
        self,
        repair: Callable[[str, str, Sequence[tuple[str, ...]]], int],
        close: Callable[[Repair, Sequence[tuple[str, ...]]], None],
    ) -> None:
        """Carries out the requests for repairs by `repair` (schema, table, keys), or by `close` where the rows were
        read already (with the place that they are from), which takes as long as it takes: in another thread than
        `take`. What would fail each time refuses the request. Raises what may pass, and what is wrong with the whole
        pipeline, after which the request is still there; where that is about one table, once the others had their turn.
        """
        passing: TableUnavailable | None = None
        for key in self.repairs:
            data = None if key in self._carried_out else self._read(key)
            if data is None:
                continue
            request = Request.decode(data)
            try:
                if request.repair is not None:
                    close(request.repair, request.keys)
                else:
                    repair(request.schema_name, request.table_name, request.keys)
            except Exception as error:
                if isinstance(error, TableUnavailable):
                    passing = passing or error
                    continue
                if may_pass(error) or isinstance(error, _OF_THE_PIPELINE):
                    raise
                if not isinstance(error, ServiceError):
                    # Of a request that stays, each start would end so.
                    self._logger.error("a repair failed", exc_info=error)
                    error = UsageError(
                        f"unexpected {describe(error)}", hint="please report what the log of ingest says"
                    )
                self._refuse(key, request.action, f"{request.schema_name}.{request.table_name}", error)
            self._remove(key)
        if passing is not None:
            raise passing

    def _take_hint(self, key: str, request: Request) -> None:
        try:
            self._advance(request.awaited)
        except UsageError as error:
            self._refuse(key, request.action, "a position", error)
        self._remove(key)

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
        """Tried again with the next look below `control/` until the store does it: the next start would carry out
        what stays once more, long after another request has taken it back.
        """
        again = key in self._carried_out
        self._carried_out.add(key)
        try:
            self._store.delete(key)
        except (StoreRefused, StoreUnavailable) as error:
            if not again:
                self._logger.warning("a request stays below control/ for now", key=ascii(key[:200]), error=str(error))

    def _request(self, key: str) -> Request | None:
        """None for one that is gone, and for one of unknown form, which is refused."""
        data = self._read(key)
        if data is None:
            return None
        try:
            return Request.decode(data)
        except (FormatTooNew, ManifestCorrupt) as error:
            self._refuse(key, "", "a request of unknown form", error)
            self._remove(key)
            return None

    def _carry_out(self, key: str, request: Request, published: Mapping[int, TableFacts]) -> bool:
        """False when it cannot be carried out now, and is left for later."""
        name = f"{request.schema_name}.{request.table_name}"
        facts = next(
            (
                found
                for found in published.values()
                if (found.schema, found.name) == (request.schema_name, request.table_name)
            ),
            None,
        )
        try:
            if request.action in (PAUSE, RESUME):
                if not self._pause(request, name):
                    return False
            elif request.action == REMOVE:
                self._remove_table(facts, name)
            else:
                self._follow(facts, name, again=request.action == RESYNC)
        except UsageError as error:
            self._refuse(key, request.action, name, error)
        else:
            for older in self._refused:
                seen = self._refusal(older)
                if seen is not None and seen.table == name:
                    self._remove(older)
        self._tables.wait_stored()
        self._remove(key)
        return True

    def _pause(self, request: Request, name: str) -> bool:
        table = self._carried(request)
        if table is None:
            raise UsageError(
                f"no table {name} is followed", hint="`sluice tables` lists the tables and the states they are in"
            )
        paused = request.action == PAUSE
        return bool(self._tables.decide(events.PauseAsked(int(table.table_id), paused=paused)))

    def _carried(self, request: Request) -> TableState | None:
        """The table of this name that the pipeline has not parted with; one of them at most."""
        found = [
            table
            for table in self._tables.states().values()
            if (table.schema_name, table.table_name) == (request.schema_name, request.table_name)
            and table.state != State.DETACHED
        ]
        return max(found, key=lambda table: table.generation_seq, default=None)

    def _selects(self, facts: TableFacts) -> bool:
        return self._tables.configured.selects(facts, self._tables.states().get(str(facts.oid)))

    def _remove_table(self, facts: TableFacts | None, name: str) -> None:
        """The look before has detached the table, if it is to go."""
        if facts is not None and self._selects(facts):
            raise UsageError(
                f"table {name} is still published and selected, and is still followed",
                hint=f"`sluice tables remove {name}` says how to remove it",
            )

    def _follow(self, facts: TableFacts | None, name: str, *, again: bool) -> None:
        """The look before has begun a table that is new."""
        if facts is None:
            raise UsageError(
                f"publication {self._publication} does not carry table {name}",
                hint=f"`sluice tables add {name}` says how to add it",
            )
        if not self._selects(facts):
            raise UsageError(f"source.tables leaves table {name} out", hint="add it to source.tables")
        if again and self._tables.decide(events.SnapshotAsked(facts)):
            self._logger.info("table is read again from a new snapshot", table=name)
        elif (state := self._tables.states().get(str(facts.oid))) is not None and state.state == State.QUARANTINED:
            raise UsageError(
                f"table {name} cannot be carried: {state.reason}",
                hint="fix that; Sluice then reads the table without being asked",
            )

    def _refuse(self, key: str, action: str, name: str, error: ServiceError) -> None:
        self._logger.error("request refused", table=name, error=str(error), hint=error.hint)
        refusal = Refusal(action, name, str(error), error.hint, datetime.now(UTC).isoformat(timespec="seconds"))
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

    def _is_over(self, refusal: Refusal, published: Mapping[int, TableFacts]) -> bool:
        """Whether what the refusal says is not so any more: the request would be carried out now, or
        what it asked for has come about.
        """
        followed = any(
            table.state.is_followed and table.source_name == refusal.table for table in self._tables.states().values()
        )
        listed = any(
            facts.qualified_name == refusal.table and self._tables.configured.selected(facts.schema, facts.name)
            for facts in published.values()
        )
        if refusal.action == REMOVE:
            return not listed
        if refusal.action == REPAIR:
            return False
        return bool(refusal.action) and followed and (listed or refusal.action in (PAUSE, RESUME))

    def _forget_old(self, key: str, published: Mapping[int, TableFacts]) -> None:
        seen = self._refusal(key)
        if key in self._left_alone:
            return
        if (
            seen is None
            or self._is_over(seen, published)
            or (datetime.now(UTC) - datetime.fromisoformat(seen.refused_at)).total_seconds() > REFUSAL_SECONDS
        ):
            self._remove(key)
