"""What comparisons found, as it is kept and shown."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from sluice.contract import keys
from sluice.contract.row_form import Difference, Row
from sluice.contract.table_state import State
from sluice.contract.verified import DIFFERENT, EQUAL, NOT_COMPARED, Verified, VerifiedTable
from sluice.health.facts import Facts
from sluice.health.verdict import judge
from sluice.health.verified import Comparisons
from sluice.manifest.state import TableState
from sluice.operate.compare.comparing import Verdict, not_compared
from sluice.operate.compare.recording import Record
from sluice.store.memory import MemoryStore

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = 3600.0
ROW = Row(1, 2, ("17",))


def table(table_id: str = "7", generation: int = 1) -> TableState:
    return TableState(table_id, "public", f"t{table_id}", State.LIVE, "", 10, generation, 2, {})


def verdict(outcome: str, lsn: int = 0, *, rows: int = 0) -> Verdict:
    return Verdict("7", "public", "t7", outcome, lsn=lsn, difference=Difference(changed=(ROW,) * rows))


class Kept:
    """A record, and what is shown of it."""

    def __init__(self, *, every_seconds: float = 0.0) -> None:
        self.store = MemoryStore(f"verified {uuid.uuid4()}", prefix="shop/")
        self.now = BEGIN
        self.record = Record(self.store, every_seconds=every_seconds, clock=lambda: self.now)

    def after(self, seconds: float) -> "Kept":
        self.now += timedelta(seconds=seconds)
        return self

    def codes(self, *tables: TableState) -> list[str]:
        seen = Comparisons.read(self.store).seen({one.table_id: one for one in tables or (table(),)})
        problems = judge(Facts(now=self.now.timestamp(), comparisons=tuple(seen))).problems
        return [problem.code for problem in problems if problem.code.startswith("verify.")]

    def known(self) -> VerifiedTable:
        found = Comparisons.read(self.store).of(table())
        assert found is not None
        return found


def test_a_difference_is_shown_until_the_table_is_found_equal() -> None:
    kept = Kept()
    assert kept.codes() == []
    kept.record.note(table(), verdict(EQUAL, 50))
    assert kept.codes() == []
    kept.after(9).record.note(table(), verdict(DIFFERENT, 60, rows=3))
    assert kept.codes() == ["verify.different"]
    kept.after(9).record.note(table(), not_compared(table(), "the source is away", passing=True))
    assert kept.codes() == ["verify.different"]
    assert (kept.known().differences, kept.known().lsn, kept.known().at) == (3, 50, BEGIN.isoformat())
    kept.record.note(table(), verdict(EQUAL, 70))
    assert (kept.codes(), kept.known().lsn, kept.known().differences) == ([], 70, 0)


def test_what_was_found_of_another_generation_says_nothing() -> None:
    kept = Kept()
    kept.record.note(table(), verdict(DIFFERENT, 60, rows=1))
    assert kept.codes(table(generation=2)) == []
    kept.record.note(table(generation=2), not_compared(table(), "it is snapshot", passing=True))
    assert Comparisons.read(kept.store).of(table(generation=2)) == VerifiedTable(
        2, NOT_COMPARED, BEGIN.isoformat(), reason="it is snapshot"
    )


def test_a_table_that_is_not_found_equal_for_three_intervals_is_late() -> None:
    kept = Kept(every_seconds=HOUR)
    kept.record.begin()
    assert kept.after(2.9 * HOUR).codes() == []
    assert kept.after(0.2 * HOUR).codes() == ["verify.late"]
    kept.record.note(table(), verdict(EQUAL, 50))
    assert kept.codes() == []
    kept.after(2 * HOUR).record.note(table(), not_compared(table(), "the source is away", passing=True))
    assert kept.codes() == []
    assert kept.after(1.1 * HOUR).codes() == ["verify.late"]
    kept.record.note(table(), not_compared(table(), "the lake keeps a changelog of it", passing=False))
    assert kept.codes() == []


def test_without_continuous_comparison_no_table_is_late() -> None:
    kept = Kept(every_seconds=HOUR)
    kept.record.begin()
    Record(kept.store, clock=lambda: kept.now).note(table("8"), verdict(EQUAL, 50))
    assert kept.after(99 * HOUR).codes() == []


@pytest.mark.parametrize("junk", [b"", b"{}", b'{"format_version": 99}'])
def test_a_record_of_another_form_is_no_record(junk: bytes) -> None:
    kept = Kept()
    kept.store.put(keys.VERIFIED, junk)
    assert kept.codes() == []
    kept.record.note(table(), verdict(EQUAL, 50))
    assert Verified.decode(kept.store.get(keys.VERIFIED)).tables["7"].lsn == 50
