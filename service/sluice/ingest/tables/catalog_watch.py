"""What the stream cannot show: tables that join or leave the publication, rewrites without events,
renamed labels.

Invariant: the manifest says that the catalog was examined through a position only after a look that
began SETTLED_SECONDS after everything up to there was stored, and that found nothing which the manifest
lacks; or because the source has the DDL signal, and said nothing since (see ddl_signals). A change that
the catalog shows and the stream does not turns the table stale by name; one that changes nothing in the
rows (VACUUM FULL, ANALYZE, an index) does not. What a look means for a table is
decided by `FollowedTables.look`. Runs in a thread, on a session of its own.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Progress
from sluice.contract.reasons import unpublished
from sluice.contract.table_state import State
from sluice.ingest.tables.ddl_signals import DdlSignals, Due, doubts
from sluice.ingest.tables.described import DescribedTables
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.ingest.tables.forgetting import Forgetting
from sluice.ingest.tables.requests import Requests
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import TableState
from sluice.source import ddl_signal
from sluice.source.catalog import Catalog
from sluice.source.lazy_session import LazySession
from sluice.source.published_tables import PublishedTables
from sluice.source.sessions import Connection, KnownSource
from sluice.store.base import ObjectStore
from sluice.tables import events
from sluice.tables import messages as messagetable
from sluice.tables.lake_paths import TakenPaths, moves
from sluice.tables.register import differs

SETTLED = (State.LIVE, State.SNAPSHOT)
"""States in which the same facts say the same at the next look. In the others time, or the stream,
may have brought what was waited for.
"""
_TRIES = 3
SETTLED_SECONDS = 0.2
"""A commit is sent once its record is on disk, and seen by other sessions a moment later."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The manifest was at `lsn` at the time `at` (monotonic)."""

    lsn: int
    at: float

    @property
    def settled(self) -> bool:
        return time.monotonic() - self.at >= SETTLED_SECONDS


class CatalogWatch:
    """Compares the catalog with the manifest each time `run_once` is called, and carries out the
    requests that wait in `store`. A look costs the server, and us, by what changed since the last one.
    Thread-safe: looks wait for one another.
    """

    def __init__(
        self,
        options: KnownSource,
        tables: FollowedTables,
        store: ObjectStore,
        *,
        log: OrderedLog,
        signals: DdlSignals | None = None,
        is_quiet: Callable[[], bool] = lambda: True,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`is_quiet` says whether no entry is about to be written by the stream. `advance`: see Requests."""
        self._options, self._publication = options, options.publication
        self._session = LazySession(options)
        self._published = PublishedTables(options.publication)
        self._tables = tables
        self._described = DescribedTables(tables)
        self._forgetting = Forgetting(store, tables, lambda: log.stored)
        self.requests = Requests(store, tables, options.publication, advance=advance)
        self._configured = tables.configured
        self._settled: dict[int, tuple[TableFacts, TableState]] = {}
        """By oid: the facts and the state of tables for which a look changed nothing."""
        self._log = log
        self._is_quiet = is_quiet
        self._mark = _Mark(0, 0.0)
        self.signals = signals or DdlSignals.of(log)

    def run_once(self) -> None:
        """One look. Raises SourceUnavailable when the connection is lost; the next call opens
        another.
        """
        self._session.ask(self._look)

    def is_due(self) -> bool:
        """Whether a look would examine what was published since the last one, or a request, a DDL signal or another
        selection of tables waits for one.
        """
        if self._mark.lsn <= self._log.examined_lsn:
            self._mark = _Mark(self._log.stored.through_lsn, time.monotonic())
        waits = self.requests.waiting or self.signals.waiting or self._tables.configured is not self._configured
        return bool(waits) or (self._mark.lsn > self._log.examined_lsn and self._mark.settled)

    @property
    def is_unstated(self) -> bool:
        """Whether the manifest does not say yet through where it was examined, and no entry of the stream will."""
        state = self._log.stored
        return state.examined_lsn < min(self._log.examined_lsn, state.through_lsn) and self._is_quiet()

    def state_examined(self) -> None:
        """Sees to it that the manifest says through where it was examined."""
        if self.is_unstated:
            self._log.append(Progress()).result()

    def conclude(self) -> None:
        """Examines what was published last, at the end of a run. What a look leaves for the next one stays."""
        for _ in range(_TRIES):
            if not self.is_due() and self._log.examined_lsn >= self._log.stored.through_lsn:
                break
            time.sleep(SETTLED_SECONDS)
            self.run_once()
        self.state_examined()

    def close(self) -> None:
        self._session.close()

    def _look(self, connection: Connection) -> None:
        if self._tables.configured is not self._configured:
            self._configured, self._settled = self._tables.configured, {}
        waiting, mark, examined_lsn = dict(self.requests.waiting), self._mark, 0
        if mark.settled:  # a younger one stays, or looks at a faster rhythm would never examine anything
            examined_lsn = mark.lsn
            self._mark = _Mark(self._log.stored.through_lsn, time.monotonic())
        self._options.prove(connection)  # a standby may have fallen behind since the session began
        due = self.signals.due(partial(ddl_signal.unseen_among, connection))
        seen_signal = ddl_signal.probe(connection, with_open=self.signals.settling)
        states = self._tables.states()  # from before the look: what changes meanwhile is judged by the next one
        before_lsn, visible = Catalog(connection).wal_end(), Catalog(connection).visible()
        self.signals.probed(seen_signal, before_lsn)
        published = self._published.look(connection)
        wal_end = Catalog(connection).wal_end()
        for table in states.values():
            if int(table.table_id) not in published and table.table_id != messagetable.TABLE_ID:
                self._tables.decide(events.TableGone(int(table.table_id), unpublished(self._publication)))
        seen: dict[str, int] = {}
        for oid, facts in published.items():  # after those that are gone, whose names and paths they may have
            known = states.get(str(oid))
            before = self._settled.get(oid)
            is_settled = before is not None and before[0] is facts and before[1] is known
            if is_settled or self._tables.look(facts, states, wal_end=wal_end):
                seen[str(oid)] = known.generation if known is not None else 0
        self._doubt(connection, due, published)
        examined_lsn = self.signals.bounded(due, examined_lsn)
        self._tables.looked(before_lsn=before_lsn, visible=visible, examined_lsn=examined_lsn, seen=seen)
        self._tables.wait_stored()
        self.signals.judged(due, examined_lsn=self._log.examined_lsn)
        taken = TakenPaths(self._tables.states(), self._configured.policies)
        self._settled = {
            oid: (facts, state)
            for oid, facts in published.items()
            if (state := states.get(str(oid))) is not None
            and state.state in SETTLED
            and (state.state == State.SNAPSHOT or not differs(state, facts))
            and self._tables.states().get(str(oid)) is state
            and not moves(state, taken, self._configured.policies)
        }
        self._described.turn(connection, published)
        self.requests.take(waiting, published)
        self._forgetting.turn(Catalog(connection))
        self._tables.wait_stored()

    def _doubt(self, connection: Connection, due: Due, published: Mapping[int, TableFacts]) -> None:
        """Names the tables that were otherwise for a while, as DDL signals say and two looks do not show."""
        carried = [one for one in self._tables.states().values() if one.state.is_followed]
        found = (published.get(int(one.table_id)) for one in carried)
        self.signals.looked(facts for facts in found if facts is not None)
        entries = cache(partial(ddl_signal.entries_of, connection, self._publication))
        at = self._log.stored.through_lsn
        for one, unseen in doubts(due.signals, published, carried, self._configured.policies, entries=entries):
            self._tables.decide(events.EqualityLost(int(one.table_id), unseen, lsn=at, generation=one.generation))
