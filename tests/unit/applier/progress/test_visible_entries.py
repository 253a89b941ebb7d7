"""An entry is called visible once, when every lake table that it changes and that follows has its changes."""

import pytest

from sluice.contract.entries import Table
from sluice.contract.table_state import State
from sluice.manifest.reader import read_entries
from sluice.tracing.spans import Published
from sluice_spark.progress import visible_entries
from sluice_spark.progress.visible_entries import VisibleEntries
from tests.support.reasons import because
from tests.unit.applier.progress.test_boundary import Lake


class _Tracer:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def visible(self, entry: Published, *, at: float, left_out: int) -> None:
        self.seen.append((entry.seq, left_out))


class _Watched:
    def __init__(self) -> None:
        self.lake, self.tracer = Lake(), _Tracer()
        self.visible = VisibleEntries(self.lake.ledger, self.tracer)  # type: ignore[arg-type]

    def write(self, *tables: int) -> int:
        seq = self.lake.manifest.unstored(*(self.lake.schemas[table] for table in tables))
        self.read()
        return seq

    def read(self) -> None:
        ledger = self.lake.ledger
        for entry, sha256 in read_entries(self.lake.store, after_seq=ledger.read_seq):
            ledger.take_in(entry, sha256, since=self.lake.now)
            self.visible.take_in(entry, sha256)
        self.look()

    def apply(self, table: int) -> None:
        lake = self.lake
        for work in list(lake.ledger.ready(now=lake.now, boundary_seq=0)):
            if work.table_id == lake.schemas[table].table_id:
                lake.ledger.begun(work, now=lake.now)
                lake.running.append(work)
                lake.end(0)
                break
        self.look()

    def look(self) -> list[tuple[int, int]]:
        self.visible.look()
        return self.tracer.seen


def test_an_entry_is_visible_when_the_last_of_its_tables_has_it_and_once() -> None:
    watched = _Watched()
    first, second = watched.write(0, 1), watched.write(2)
    assert watched.look() == []
    watched.apply(0)
    assert watched.look() == []
    watched.apply(2)
    assert watched.look() == [(second, 0)]
    watched.apply(1)
    assert watched.look() == [(second, 0), (first, 0)]
    third = watched.write(1)
    watched.apply(1)
    assert watched.look()[2:] == [(third, 0)]


def test_a_table_that_is_stopped_is_not_waited_for_and_the_entry_says_so() -> None:
    watched = _Watched()
    seq = watched.write(0, 1)
    watched.apply(0)
    schema = watched.lake.schemas[1]
    stale = Table(schema.table_id, "public", "t1", State.STALE, 1, because("rewritten"), watched.lake.manifest.lsn)
    watched.lake.manifest.append(stale)
    watched.read()
    assert watched.look() == [(seq, 1)]


def test_what_an_earlier_process_applied_is_not_called_visible_again() -> None:
    watched = _Watched()
    watched.write(0)
    watched.apply(0)
    assert len(watched.tracer.seen) == 1
    tracer = _Tracer()
    after = VisibleEntries(watched.lake.ledger, tracer)  # type: ignore[arg-type]
    for entry, sha256 in read_entries(watched.lake.store, after_seq=0):
        after.take_in(entry, sha256)
    after.look()
    assert tracer.seen == []


def test_entries_that_wait_for_a_table_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_entries, "MOST_ENTRIES", 3)
    watched = _Watched()
    last = [watched.write(0) for _ in range(5)][2:]
    watched.apply(0)
    assert [seq for seq, _ in watched.look()] == last
