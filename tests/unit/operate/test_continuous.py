"""Continuous comparison: one table after the other, each once in an interval, whatever happens to one."""

import uuid
from datetime import UTC, datetime, timedelta

from structlog.testing import capture_logs

from sluice.contract.table_state import State
from sluice.contract.verified import EQUAL
from sluice.errors import SourceUnavailable, StoreUnavailable
from sluice.manifest.values import TableState
from sluice.operate.compare.comparing import Comparison
from sluice.operate.compare.continuous import AGAIN_SECONDS, LOOK_SECONDS, Continuous
from sluice.operate.compare.recording import Record
from sluice.store.memory import MemoryStore

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = 3600.0


class Loop:
    """Time passes while it waits. `compared` has (hour, table)."""

    def __init__(self, *tables: TableState) -> None:
        self.tables = {table.table_id: table for table in tables}
        self.now = BEGIN
        self.until = BEGIN
        self.failing: set[str] = set()
        self.manifest_away = 0
        self.compared: list[tuple[float, str]] = []
        self.rested = 0
        record = Record(
            MemoryStore(f"continuous {uuid.uuid4()}", prefix="shop/"), every_seconds=HOUR, clock=lambda: self.now
        )

        def rest() -> None:
            self.rested += 1

        self._loop = Continuous(
            self._states, self._compare, record, rest, lambda: self.now >= self.until, self._wait, lambda: self.now
        )
        self._record = record

    def run(self, hours: float) -> list[tuple[float, str]]:
        self.until, before = self.now + timedelta(hours=hours), len(self.compared)
        self._loop.run()
        return self.compared[before:]

    def _states(self) -> dict[str, TableState]:
        if self.manifest_away:
            self.manifest_away -= 1
            raise StoreUnavailable("away")
        return self.tables

    def _wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def _compare(self, state: TableState) -> Comparison:
        self.compared.append((round((self.now - BEGIN).total_seconds() / HOUR, 1), state.table_id))
        self.now += timedelta(minutes=6)
        if state.table_id in self.failing:
            raise SourceUnavailable("the connection was lost")
        verdict = Comparison(state.table_id, "public", "t", EQUAL, lsn=5)
        self._record.note(state, verdict)
        return verdict


def table(table_id: str, state: State = State.LIVE) -> TableState:
    return TableState(table_id, "public", f"t{table_id}", state, None, 10, 1, 2, {})


def test_each_table_is_compared_once_in_an_interval_one_after_the_other() -> None:
    loop = Loop(table("7"), table("8"), table("9", State.STALE), table("0"))
    assert loop.run(0.9) == [(0.0, "7"), (0.1, "8")]
    assert loop.rested >= (0.7 * HOUR) / LOOK_SECONDS
    assert [table_id for _, table_id in loop.run(2.0)] == ["7", "8", "7", "8"]


def test_a_table_that_fails_does_not_keep_the_others_waiting() -> None:
    loop = Loop(table("7"), table("8"))
    loop.failing = {"7"}
    compared = loop.run(1.0)
    assert [table_id for _, table_id in compared if table_id == "8"] == ["8"]
    assert compared[1] == (0.1, "8")
    tries = [at for at, table_id in compared if table_id == "7"]
    assert 3 <= len(tries) <= 1 + HOUR / AGAIN_SECONDS
    loop.failing = set()
    assert [table_id for _, table_id in loop.run(1.0)].count("7") == 1


def test_a_clock_that_was_ahead_puts_off_no_table() -> None:
    loop = Loop(table("7"))
    loop.now += timedelta(days=365)
    assert len(loop.run(0.5)) == 1
    loop.now = BEGIN
    assert [table_id for _, table_id in loop.run(2.0)] == ["7", "7"]


def test_what_is_away_for_a_while_ends_nothing() -> None:
    loop = Loop(table("7"))
    loop.manifest_away = 5
    assert [table_id for _, table_id in loop.run(0.5)] == ["7"]


def test_who_waits_for_the_next_turn_is_told_when_it_is_and_once() -> None:
    loop = Loop(table("7"))
    with capture_logs() as said:
        loop.run(0.9)
    rests = [line for line in said if line["event"] == "no table is due"]
    assert [(line["tables"], line["next_at"]) for line in rests] == [(1, "2030-01-01T01:06:00+00:00")]
