"""Compares the tables one after the other, and each table once per interval, until it is stopped.

Invariant: nothing that happens to one table or one comparison ends it: a failure is reported, and the
comparison is tried again later. A table that was never found equal is never called verified.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from sluice.backoff import Backoff, doubling
from sluice.contract.table_state import State
from sluice.contract.verified import Verified
from sluice.errors import ServiceError
from sluice.lsn import show
from sluice.manifest.values import TableState
from sluice.operate.compare.comparing import Comparison, not_compared
from sluice.operate.compare.recording import Clock, Record, utc_now

AGAIN_SECONDS = 300.0
"""At most until a table that could not be compared is tried again."""
LOOK_SECONDS = 15.0
"""Between two looks for tables that are due."""
RETRY_SECONDS = doubling(5.0, 300.0)

_AT_ONCE = datetime.min.replace(tzinfo=UTC)

Compare = Callable[[TableState], Comparison]


def turns(
    tables: Mapping[str, TableState], known: Verified, *, every_seconds: float, now: datetime
) -> list[tuple[datetime, TableState]]:
    """When each table is to be compared, and the table, in that order. Pure."""
    found, latest = [], now + timedelta(seconds=every_seconds)
    for key, state in tables.items():
        if state.table_id == "0" or not (state.state.has_initial_rows or state.state == State.GAP):
            continue
        last = known.tables.get(key)
        at = _AT_ONCE
        # A time that is not there yet is that of a clock which was ahead, and would put it off for as long.
        if last is not None and last.generation == state.generation and _time(last.compared_at) <= latest:
            pause = min(every_seconds, AGAIN_SECONDS) if last.reason and last.possible else every_seconds
            at = _time(last.compared_at) + timedelta(seconds=pause)
        found.append((at, state))
    return sorted(found, key=lambda turn: (turn[0], turn[1].key))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@dataclass(slots=True)
class Continuous:
    """`tables` reads the manifest, `compare` compares one table, may repair it and keeps what it found in
    `record`; `rest` is called when nothing is due. `stopped` ends it.
    """

    tables: Callable[[], Mapping[str, TableState]]
    compare: Compare
    record: Record
    rest: Callable[[], None] = lambda: None
    stopped: Callable[[], bool] = lambda: False
    wait: Callable[[float], object] = time.sleep
    clock: Clock = utc_now

    def run(self) -> None:
        """Until stopped."""
        logger = structlog.get_logger("verify")
        backoff = Backoff(RETRY_SECONDS)
        resting = False
        while not self.stopped():
            try:
                found = turns(
                    self.tables(), self.record.read(), every_seconds=self.record.every_seconds, now=self.clock()
                )
                if not found or found[0][0] > self.clock():
                    if not resting:
                        following = found[0][0].isoformat(timespec="seconds") if found else None
                        logger.info("no table is due", tables=len(found), next_at=following)
                    resting = True
                    self.rest()
                    self.wait(LOOK_SECONDS)
                    continue
                resting = False
                state = found[0][1]
                began = time.monotonic()
                try:
                    verdict = self.compare(state)
                except ServiceError as error:
                    # Its turn is over all the same: the others are not to wait for it.
                    verdict = not_compared(state, str(error), passing=True)
                    self.record.note(state, verdict)
                backoff.reset()
                say = logger.error if len(verdict.difference) else logger.warning if verdict.reason else logger.info
                say(
                    "table compared",
                    table=verdict.name,
                    outcome=verdict.outcome,
                    reason=verdict.reason or None,
                    lsn=show(verdict.lsn) if verdict.lsn else None,
                    rows=verdict.rows,
                    differences=len(verdict.difference),
                    repaired=verdict.repaired,
                    seconds=round(time.monotonic() - began, 1),
                )
            except ServiceError as error:
                logger.warning("tables cannot be compared now", error=str(error), hint=error.hint)
                self.rest()
                self.wait(backoff.next())
