"""`sluice verify`: what it does with the tables it is given: compare them, repair them, keep what was found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import structlog

from sluice.contract.table_state import State
from sluice.contract.verified import DIFFERENT, NOT_COMPARED
from sluice.errors import ApplyError, TableUnavailable, UsageError, VerificationFailed
from sluice.ingest.snapshot.reader import TableRefused
from sluice.lsn import show
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import load_state
from sluice.manifest.targets import TargetsOf, lake_tables
from sluice.manifest.values import TableState
from sluice.operate.compare.closing_gaps import close_gap
from sluice.operate.compare.comparing import Ask, Comparing, Comparison
from sluice.operate.compare.continuous import Continuous
from sluice.operate.compare.recording import Record
from sluice.operate.compare.repairing import repair
from sluice.operate.compare.source_side import Load
from sluice.operate.hastening import hasten
from sluice.source.sessions import KnownSource, SourceOptions
from sluice.store.base import ObjectStore

FOREIGN = "what replication brought to the source, which `source.origin: none` leaves out"
_OF_ONE_TABLE = (ApplyError, UsageError, VerificationFailed, TableUnavailable, TableRefused)
Say = Callable[[Comparison], None]


def _silent(_: Comparison) -> None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Made by `of`. Every verdict is kept in `record`. Rows are read from the place that the manifest's newest
    epoch states, and no other: a promoted standby once ingest has gone on there.
    """

    source: SourceOptions
    store: ObjectStore
    ask: Ask
    load: Load
    record: Record
    wait_seconds: float
    targets_of: TargetsOf

    @classmethod
    def of(
        cls,
        source: SourceOptions,
        store: ObjectStore,
        ask: Ask,
        *,
        load_share: float,
        wait_seconds: float,
        targets_of: TargetsOf,
        every_seconds: float = 0.0,
    ) -> "Run":
        """With `every_seconds` it is one that compares for ever."""
        record = Record(store, every_seconds=every_seconds)
        return cls(source, store, ask, Load(load_share), record, wait_seconds, targets_of)

    def lake_tables(self) -> dict[str, TableState]:
        """Those of the pipeline by key, as the manifest has them now."""
        return lake_tables(load_state(self.store), self.targets_of)

    def for_ever(self, *, rest: Callable[[], None], repair_wanted: bool) -> NoReturn:
        """Until the process is stopped, which is safe at any moment; `rest` is called when nothing is due."""

        def one(state: TableState) -> Comparison:
            return (self.repaired if repair_wanted else self.compared)([state])[0]

        self.record.begin()
        Continuous(self.lake_tables, one, self.record, rest).run()
        raise AssertionError("it ended")

    def compared(self, states: Sequence[TableState], say: Say = _silent) -> list[Comparison]:
        """Of each table. Raises as `Comparing.compare` does, StoreUnavailable."""
        verdicts: list[Comparison] = []
        for verdict in self._comparing(self._known()).compare(states, self.stale(states)):
            self.record.note(states[len(verdicts)], verdict)
            verdicts.append(verdict)
            say(verdict)
        return verdicts

    def stale(self, states: Sequence[TableState]) -> dict[str, str]:
        """Why lake tables take no commit any more, by key: of those of `states` that ingest or applier calls
        stale. Raises StoreError.
        """
        log = newest_log(self.store).read()
        found: dict[str, str] = {}
        for state in states:
            row = log.tables.get(state.key) if log is not None else None
            if state.state == State.STALE:
                found[state.key] = state.reason
            elif row is not None and row.generation == state.generation and row.state == State.STALE:
                found[state.key] = row.reason
        return found

    def repaired(self, states: Sequence[TableState], say: Say = _silent) -> list[Comparison]:
        """Gaps are closed first; what differs afterwards is repaired and compared once more. A table of which that
        is refused, or takes too long, holds up no other one. Raises what `compared` raises.
        """
        logger = structlog.get_logger("verify")
        self._close_gaps(states)
        now = self.lake_tables()
        verdicts = self.compared([now.get(state.key, state) for state in states], say)
        for place, verdict in enumerate(verdicts):
            if verdict.outcome == DIFFERENT:
                try:
                    repair(self.store, verdict, seconds=self.wait_seconds)
                except _OF_ONE_TABLE as error:
                    logger.error("the rows are not repaired", table=verdict.name, error=error, hint=error.hint)
                    continue
                state = self.lake_tables().get(verdict.key, states[place])
                again = next(iter(self._comparing(self._known()).compare([state])))
                if again.outcome == NOT_COMPARED:
                    # What was found is not taken back by a comparison that did not take place.
                    logger.error("rows that differed cannot be compared again", table=again.name, reason=again.reason)
                    continue
                verdicts[place] = replace(again, repaired=len(verdict.difference))
                self.record.note(state, verdicts[place])
                say(verdicts[place])
        return verdicts

    def _close_gaps(self, states: Sequence[TableState]) -> None:
        """The rows that close the gap of a table close that of all its lake tables: one that is as it should be and can
        be compared says which rows these are.
        """
        logger, stale, done = structlog.get_logger("verify"), self.stale(states), set[str]()
        for state in states:
            if state.state != State.GAP or state.table_id in done:
                continue
            if state.key in stale:
                logger.warning("the gap stays open", table=state.title, reason=f"it is stale: {stale[state.key]}")
                continue
            source = self._known()
            try:
                closed = close_gap(source, self.store, self._comparing(source), state, seconds=self.wait_seconds)
            except _OF_ONE_TABLE as error:
                done.add(state.table_id)
                logger.error("the gap stays open", table=state.title, error=error, hint=error.hint)
                continue
            if closed.reason:
                logger.warning("the gap stays open", table=state.title, reason=closed.reason)
            else:
                done.add(state.table_id)
                logger.info("the gap is closed", table=state.title, rows=closed.repaired, lsn=show(closed.lsn))

    def _known(self) -> KnownSource:
        opened = load_state(self.store).opened
        assert opened is not None, "a manifest with tables has an epoch"
        return KnownSource.of(self.source, opened)

    def _comparing(self, source: KnownSource) -> Comparing:
        opened = load_state(self.store).opened
        return Comparing(
            source,
            self.ask,
            load=self.load,
            wait_seconds=self.wait_seconds,
            hasten=partial(hasten, self.store),
            applied=lambda: log.tables if (log := newest_log(self.store).read()) is not None else {},
            left_out=FOREIGN if opened is not None and opened.origin == "none" else "",
        )
