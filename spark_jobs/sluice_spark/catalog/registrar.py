"""Keeps the names of lake tables in a catalog as they should be, beside the windows, in a thread of its own.

Owns: no window, no commit and no boundary waits for a catalog. What is registered is asked of the catalog itself, so a
killed process leaves nothing undone: the next one asks for every name once. A name is asked for again when the columns
or the place of its table change, and each LOOK_SECONDS. What fails is named with its table and tried again, with
growing pauses. For the applier's loop: one thread.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog
from pyspark.sql import SparkSession

from sluice import faults
from sluice.backoff import RetryTime, doubling
from sluice.contract.applied import CATALOG, MaintenanceRun, time_text
from sluice.contract.table_state import State
from sluice.errors import ServiceError, WriterFenced
from sluice.manifest.values import TableState
from sluice_spark.beside import Beside
from sluice_spark.catalog.client import Catalog, CatalogAway, CatalogRefused
from sluice_spark.catalog.columns import columns_of
from sluice_spark.catalog.entries import Entry, taken_by
from sluice_spark.catalog.options import CatalogOptions
from sluice_spark.lake.failures import SparkGone
from sluice_spark.lake.opening import Lake
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.table_progress import TableProgress

CHECK_SECONDS = 1.0
"""Between two searches for a name that is to be looked at."""
LOOK_SECONDS = 3600.0
"""Between two looks at a name that is as it should be: people drop entries, and comment columns of the lake."""
SETTLE_SECONDS = 60.0
"""After a change a name is looked at once more: the lake table gets its comments a little later than its columns."""
AT_ONCE = 20
"""Names of one step, after which the loop hears what became of them."""
WAITS_SECONDS = doubling(5.0, 300.0)
"""Before the next attempt, after one failure, two and so on."""

STOP_SECONDS = 2.0
"""A stop does not wait longer for what does not answer: a kill at any moment is harmless."""

_log = structlog.get_logger("sluice.apply")


class _Place(NamedTuple):
    """What a name is registered for: another one is registered anew."""

    name: str
    path: str
    generation: int
    schema_version: int
    described: object


@dataclass(slots=True)
class _Known:
    """What is known of the name of one generation of a lake table. `named` is its name, as of a state. `registered` is
    as it stood in the catalog when that was looked at last, and it is looked at again at `again_at` (loop's clock).
    """

    progress: TableProgress
    named: tuple[TableState, str] | None = None
    registered: _Place | None = None
    again_at: float = float("inf")
    retry: RetryTime = field(default_factory=lambda: RetryTime(WAITS_SECONDS))

    def is_due(self, place: _Place, now: float) -> bool:
        return self.retry.due(now) and (self.registered != place or now >= self.again_at)


class _Item(NamedTuple):
    """A name to be looked at."""

    key: str
    state: TableState
    place: _Place
    known: _Known


@dataclass(frozen=True, slots=True)
class _Done:
    """A name is as it should be. `written` says whether it had to be registered for that, which took `seconds`."""

    written: bool
    seconds: float


_Outcome = _Done | Exception


@dataclass(frozen=True, slots=True)
class _Running:
    items: list[_Item]
    future: "Future[dict[str, _Outcome]]"


class Registrar:
    """Registers the lake tables of `ledger`. `require_owner` raises when this process may not write any more."""

    def __init__(
        self,
        options: ApplyOptions,
        ledger: Ledger,
        *,
        lake: Lake,
        session: SparkSession,
        require_owner: Callable[[], None],
        counted: Callable[[int, int], None],
    ) -> None:
        """`counted` hears how many names are registered and how many fail."""
        self._options = options
        self._wanted = CatalogOptions.of(options)
        self._ledger = ledger
        self._lake = lake
        self._session = session
        self._require_owner = require_owner
        self._counted = counted
        self._catalog: Catalog | None = None
        self._away = RetryTime(WAITS_SECONDS)
        self._known: dict[str, _Known] = {}
        self._next_check = float("-inf")
        self._running: _Running | None = None
        self._stopped = threading.Event()
        self._thread: Beside[dict[str, _Outcome]] = Beside("catalog")

    def turn(self, *, now: float) -> bool:
        """Takes what has ended, and begins what is due. Whether a report may have something new to say. Raises
        WriterFenced, SparkGone.
        """
        ended = self._collect(now=now)
        if now < self._next_check and not ended:
            return False
        self._next_check = now + CHECK_SECONDS
        if self._wanted is None:
            self._next_check = float("inf")
            return self._forget()
        items = list(self._items(self._wanted))
        failing = {item.key for item in items if CATALOG in item.known.progress.maintenance.failing}
        registered = [item for item in items if item.known.registered is not None and item.key not in failing]
        self._counted(len(registered), len(failing))
        if self._running is None and self._away.due(now) and not self._stopped.is_set():
            due = [item for item in items if item.known.is_due(item.place, now)]
            if due:
                self._begin(self._wanted, due[:AT_ONCE], {item.key: item.place.name for item in items})
        return ended

    def finish(self, stop: threading.Event) -> None:
        """Does what is due now, until `stop`: a process that ends with the backlog may run for seconds only. Raises
        WriterFenced, SparkGone.
        """
        while not stop.is_set():
            self._next_check = float("-inf")
            self.turn(now=time.monotonic())
            if self._running is None:
                return
            wait([self._running.future], timeout=CHECK_SECONDS)

    def stop(self) -> None:
        """Nothing begins any more."""
        self._stopped.set()

    def close(self) -> None:
        """Takes what is under way, if it ends soon."""
        self._thread.close(self._running.future if self._running is not None else None, seconds=STOP_SECONDS)
        with suppress(ServiceError):
            self._collect(now=time.monotonic())

    def _forget(self) -> bool:
        """Without a catalog nothing is registered and nothing fails, whatever was reported before."""
        found = False
        for progress in self._ledger.tables.values():
            record = progress.maintenance
            if CATALOG in record.failing or CATALOG in record.runs:
                found = True
                progress.maintenance = record.without(CATALOG)
        return found

    def _items(self, wanted: CatalogOptions) -> Iterator[_Item]:
        """Lake tables that have a first whole version."""
        ledger = self._ledger
        for key, progress in ledger.tables.items():
            state = ledger.state.tables[key]
            if state.state is State.DETACHED or not progress.pending.has_snapshot or progress.place.version < 0:
                continue
            known = self._known.get(key)
            if known is None or known.progress is not progress:
                known = self._known[key] = _Known(progress)
            if known.named is None or known.named[0] is not state:
                name = wanted.names.name(state.schema_name, state.table_name, state.target_name)
                known.named = state, name
            name, described = known.named[1], state.described
            place = _Place(name, state.path, state.generation, progress.schema_version, described)
            yield _Item(key, state, place, known)

    def _begin(self, wanted: CatalogOptions, items: list[_Item], names: dict[str, str]) -> None:
        def run() -> dict[str, _Outcome]:
            found: dict[str, _Outcome] = {}
            try:
                for item in items:
                    if self._stopped.is_set():
                        break
                    began = time.monotonic()
                    try:
                        found[item.key] = _Done(self._register(wanted, item, names), time.monotonic() - began)
                    except CatalogAway as error:
                        found |= dict.fromkeys([one.key for one in items if one.key not in found], error)
                        break
                    except Exception as error:  # noqa: BLE001 - the loop judges it
                        found[item.key] = error
            finally:
                if self._catalog is not None:
                    self._catalog.close()  # the other side would end them meanwhile
            return found

        self._running = _Running(items, self._thread.begin(run))

    def _register(self, wanted: CatalogOptions, item: _Item, names: dict[str, str]) -> bool:
        """In the thread. Whether anything had to be written."""
        if self._catalog is None:
            self._catalog = wanted.open(self._options, jvm=lambda: self._session._jvm)
        catalog, lake_uri = self._catalog, self._options.lake_uri
        schema = self._lake.schema_json(item.state, self._session, since=item.known.progress.place.version)
        if not schema:
            raise CatalogRefused("there is no lake table any more")
        entry = Entry(
            item.place.name,
            wanted.location(lake_uri, item.place.path),
            self._options.pipeline,
            item.key,
            columns_of(schema),
        )
        found = catalog.find(entry.name)
        if found is not None and (why := taken_by(entry, found, lake=lake_uri, names=names)):
            raise CatalogRefused(why)
        if found is not None and catalog.is_as_wanted(entry, found):
            return False
        self._require_owner()
        faults.point("apply.catalog.before")
        (catalog.create if found is None else catalog.replace)(entry)
        faults.point("apply.catalog.after")
        return True

    def _collect(self, *, now: float) -> bool:
        running = self._running
        if running is None or not running.future.done():
            return False
        self._running = None
        try:
            found = running.future.result()
        except Exception as error:  # noqa: BLE001 - no commit waits for a catalog, and none fails with it
            found = {item.key: error for item in running.items}
        for item in running.items:
            outcome = found.get(item.key)
            if isinstance(outcome, WriterFenced | SparkGone):
                raise outcome
            if isinstance(outcome, _Done):
                self._done(item, outcome, now=now)
            elif outcome is not None:
                self._failed(item, outcome, now=now)
        if away := next((error for error in found.values() if isinstance(error, CatalogAway)), None):
            self._away.failed(now)
            _log.warning("the catalog does not answer", error=str(away), names=len(running.items))
        elif found:
            self._away = RetryTime(WAITS_SECONDS)
        return True

    def _done(self, item: _Item, done: _Done, *, now: float) -> None:
        known, progress = item.known, item.known.progress
        is_news = done.written or known.registered != item.place
        known.again_at = now + (SETTLE_SECONDS if is_news else LOOK_SECONDS)
        known.registered, known.retry = item.place, RetryTime(WAITS_SECONDS)
        record = progress.maintenance
        run = record.runs.get(CATALOG)
        if done.written or run is None:
            run = MaintenanceRun(time_text(time.time()), done.seconds)
        progress.maintenance = replace(record.without(CATALOG), runs={**record.runs, CATALOG: run})
        if done.written:
            _log.info("registered in the catalog", table=item.state.title, name=item.place.name)

    def _failed(self, item: _Item, error: Exception, *, now: float) -> None:
        """Nothing waits for it: the lake table is as it should be, and its name is not."""
        known, progress = item.known, item.known.progress
        if not isinstance(error, CatalogAway):
            known.retry.failed(now)
        ours = isinstance(error, ServiceError)
        reason = str(error) if ours else f"an unexpected error ({type(error).__name__})"
        progress.maintenance = progress.maintenance.failing_at(CATALOG, reason, at=time.time())
        if not isinstance(error, CatalogAway):
            _log.warning(
                "a name in the catalog is not as it should be",
                table=item.state.title,
                name=item.place.name,
                error=reason,
                hint=getattr(error, "hint", ""),
                exc_info=None if ours else error,
            )
