"""What comparisons found, as it is kept and shown."""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread, local

import pytest
from structlog.testing import capture_logs

from sluice.contract import keys
from sluice.contract.row_form import Difference, Row
from sluice.contract.table_state import State
from sluice.contract.verified import DIFFERENT, EQUAL, NOT_COMPARED, Verified, VerifiedTable
from sluice.errors import FormatTooNew, ManifestCorrupt, StoreRefused
from sluice.health.facts import Facts
from sluice.health.verdict import judge
from sluice.health.verified import Comparisons
from sluice.manifest.values import TableState
from sluice.operate.compare.comparing import Comparison, not_compared
from sluice.operate.compare.recording import KEPT, Record
from sluice.store.memory import MemoryStore

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = 3600.0
ROW = Row(1, 2, ("17",))


def table(table_id: str = "7", generation: int = 1) -> TableState:
    return TableState(table_id, "public", f"t{table_id}", State.LIVE, None, 10, generation, 2, {})


def verdict(outcome: str, lsn: int = 0, *, rows: int = 0) -> Comparison:
    return Comparison("7", "public", "t7", outcome, lsn=lsn, difference=Difference(changed=(ROW,) * rows))


class Kept:
    def __init__(self, store: MemoryStore | None = None, *, every_seconds: float = 0.0) -> None:
        self.store = store or MemoryStore(f"verified {uuid.uuid4()}", prefix="shop/")
        self.now = BEGIN
        self.record = self.by(every_seconds=every_seconds)

    def by(self, *, every_seconds: float = 0.0) -> Record:
        return Record(self.store, every_seconds=every_seconds, clock=lambda: self.now)

    def after(self, seconds: float) -> "Kept":
        self.now += timedelta(seconds=seconds)
        return self

    def codes(self, *tables: TableState, known: Comparisons | None = None) -> list[str]:
        found = Comparisons.read(self.store, known=known)
        seen = tuple(found.seen({one.table_id: one for one in tables or (table(),)}))
        facts = Facts(now=self.now.timestamp(), comparisons=seen, comparisons_unread=found.unread)
        problems = judge(facts).problems
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


def test_a_comparison_that_ends_does_not_change_what_is_expected_of_the_continuous_one() -> None:
    kept = Kept(every_seconds=HOUR)
    kept.record.begin()
    kept.by().note(table("8"), verdict(EQUAL, 50))
    assert kept.after(99 * HOUR).codes() == ["verify.late"]
    kept.by().ended()
    assert kept.codes() == []
    kept.record.note(table("8"), verdict(EQUAL, 60))
    assert kept.after(4 * HOUR).codes() == ["verify.late"], "one that still compares says so"


def test_a_comparer_that_is_started_again_and_again_puts_nothing_off() -> None:
    kept = Kept()
    for _ in range(4):
        kept.by(every_seconds=HOUR).begin()
        kept.after(HOUR)
    assert kept.codes() == ["verify.late"]
    kept.by(every_seconds=9 * HOUR).begin()
    assert kept.codes() == []


def test_an_older_comparison_that_is_kept_later_hides_no_difference() -> None:
    kept = Kept()
    kept.record.note(table(), verdict(DIFFERENT, 60, rows=3))
    kept.by().note(table(), verdict(EQUAL, 50))
    assert kept.codes() == ["verify.different"]
    kept.record.note(table(), verdict(EQUAL, 60))
    assert kept.codes() == []


def test_several_that_compare_at_once_lose_no_result() -> None:
    names = [str(number) for number in range(8)]

    class Together(MemoryStore):
        """All have read before the first of them writes."""

        first = local()
        all_there = Barrier(len(names))

        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            found = list(super().list(prefix, after=after))
            if not hasattr(self.first, "passed"):
                self.first.passed = True
                self.all_there.wait()
            return iter(found)

    kept = Kept(Together(f"verified {uuid.uuid4()}", prefix="shop/"))
    threads = [Thread(target=kept.by().note, args=(table(name), verdict(EQUAL, 5))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Together.first.passed = True
    assert {name: found.lsn for name, found in kept.record.read().tables.items()} == dict.fromkeys(names, 5)


def test_one_that_was_paused_until_its_number_was_free_again_loses_nothing() -> None:
    class Paused(MemoryStore):
        """Between reading and writing of the first, others write."""

        others = KEPT + 5

        def create(self, key: str, data: bytes | memoryview) -> None:
            if self.others:
                count, self.others = self.others, 0
                for number in range(count):
                    Record(self).note(table(str(number)), verdict(EQUAL, 1))
            super().create(key, data)

    kept = Kept(Paused(f"verified {uuid.uuid4()}", prefix="shop/"))
    kept.record.note(table("late"), verdict(DIFFERENT, 60, rows=1))
    assert kept.record.read().tables.keys() == {"late", *(str(number) for number in range(KEPT + 5))}
    assert len(list(kept.store.list(keys.VERIFIED))) == KEPT


def test_what_comparisons_left_that_were_killed_is_collected_by_the_next() -> None:
    class Killed(MemoryStore):
        """The process ends before it has collected anything."""

        killed = False

        def delete(self, key: str) -> None:
            if self.killed:
                raise KeyboardInterrupt
            super().delete(key)

    kept = Kept(store := Killed(f"verified {uuid.uuid4()}", prefix="shop/"))
    for number in range(KEPT + 3):
        store.killed = number >= KEPT
        with suppress(KeyboardInterrupt):
            kept.record.note(table(str(number)), verdict(EQUAL, 1))
    store.killed = False
    kept.record.note(table("last"), verdict(EQUAL, 1))
    assert len(list(store.list(keys.VERIFIED))) == KEPT
    assert len(kept.record.read().tables) == KEPT + 4


@pytest.mark.parametrize("junk", [b"", b"{}", b'{"format_version": 99}'])
def test_a_record_that_cannot_be_read_is_a_problem_and_what_was_known_stays(junk: bytes) -> None:
    kept = Kept()
    kept.record.note(table(), verdict(DIFFERENT, 60, rows=3))
    known = Comparisons.read(kept.store)
    kept.store.create(keys.verified(2), junk)
    assert kept.codes() == ["verify.unreadable"]
    assert kept.codes(known=known) == ["verify.unreadable", "verify.different"]
    with capture_logs() as said:
        kept.record.note(table(), verdict(EQUAL, 70))
    assert [line["event"] for line in said] == ["the results are not kept"]
    with pytest.raises((ManifestCorrupt, FormatTooNew)):
        kept.by(every_seconds=HOUR).note(table(), verdict(EQUAL, 70))
    kept.store.delete(keys.verified(2))
    assert kept.codes() == ["verify.different"]


def test_a_refused_record_is_a_problem() -> None:
    class Refusing(MemoryStore):
        def get(self, key: str) -> bytes:
            raise StoreRefused("denied")

    kept = Kept(Refusing(f"verified {uuid.uuid4()}", prefix="shop/"))
    assert kept.codes() == [], "nothing is recorded"
    kept.store.create(keys.verified(1), Verified().encode())
    assert kept.codes() == ["verify.unreadable"]
