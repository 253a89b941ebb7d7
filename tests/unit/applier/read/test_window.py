"""Windows: gap-free, whole entries, nothing before the snapshot."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.entries import Changes, Commits, Entry, Lost, Repair, Segment, Snapshot, Table
from sluice.contract.schema import TableSchema
from sluice.manifest.gaps import Gap
from sluice_spark.kinds.changelog import with_origins
from sluice_spark.read.window import PendingChanges, Window
from tests.support.manifests import opened, schema


def _segment(seq: int, *, size: int = 10, version: int = 1) -> Segment:
    return Segment(f"data/t/{seq}", "t", version, 1, size, "", seq * 10, seq * 10, {"i": 1})


def _changes(seq: int, *, size: int = 10, version: int = 1) -> Changes:
    begins = (_begins(version, seq * 10 - 5),) if version > 1 else ()
    return Changes((_segment(seq, size=size, version=version),), Commits(), tables=begins)


def _begins(version: int, lsn: int) -> Table:
    return Table("t", "public", "t", None, 1, lsn=lsn, schema=schema("t", version))


def _entry(seq: int, body: Any = None, *, from_lsn: int = 0, through_lsn: int = 0, examined_lsn: int = 0) -> Entry:
    """By default the entries have changes, and go from 10 to 20, 20 to 30 and so on."""
    start, end = from_lsn or (seq - 1) * 10, through_lsn or seq * 10
    return Entry(seq, 1, "", start, end, "", body or _changes(seq), examined_lsn or end)


def _take(pending: PendingChanges, *entries: Entry, **more: Any) -> None:
    for entry in entries:
        pending.take_in(entry, "t", through_lsn=entry.from_lsn, **more)


def _pending(*sizes: int, has_snapshot: bool = True) -> PendingChanges:
    pending = PendingChanges(1, 1, 1, has_snapshot=has_snapshot)
    _take(pending, *(_entry(seq, _changes(seq, size=size)) for seq, size in enumerate(sizes, start=2)))
    return pending


def _window(pending: PendingChanges, *, max_bytes: int = 99, until_seq: int = 99, **more: Any) -> Window:
    window = pending.next_window(max_bytes=max_bytes, until_seq=until_seq, **more)
    assert window is not None
    return window


def _applied(pending: PendingChanges) -> list[tuple[int, list[str], int]]:
    """(the entry that is the marker, segments, schema version) of the windows that there are, each applied."""
    taken = []
    while (window := pending.next_window(max_bytes=999, until_seq=99)) is not None:
        taken.append((window.last_seq, [segment.key for segment in window.segments], window.schema_version))
        pending.done(window)
    return taken


def test_a_window_ends_before_the_entry_that_would_exceed_the_bytes() -> None:
    pending = _pending(10, 10, 10)
    window = _window(pending, max_bytes=20)
    assert window.last_seq == 3
    pending.done(window)
    assert pending.complete_through(40) == 30
    assert pending.through_seq(9) == 3


def test_what_waits_is_counted_in_bytes_however_it_leaves() -> None:
    pending = _pending(10, 20, 30, 40)
    assert pending.waiting_bytes == 100
    pending.done(_window(pending, max_bytes=30))
    assert pending.waiting_bytes == 70
    pending.keep(1)
    assert pending.waiting_bytes == 30
    pending.keep(0)
    assert pending.waiting_bytes == 0


def test_an_entry_is_never_cut() -> None:
    window = _window(_pending(1000, 1), max_bytes=20)
    assert (window.last_seq, len(window.segments)) == (2, 1)


def test_a_window_ends_with_the_round() -> None:
    assert _window(_pending(1, 1, 1), until_seq=3).last_seq == 3
    assert _pending(1).next_window(max_bytes=99, until_seq=1) is None


def _chunk(pending: PendingChanges, seq: int, *, lsn: int, final: bool = False, size: int = 10) -> None:
    segments = () if final else (_segment(seq, size=size),)
    _take(pending, _entry(seq, Snapshot("t", 1, 1, lsn, segments, final=final), from_lsn=20, through_lsn=20))


def _next(pending: PendingChanges, read_lsn: int) -> tuple[int, int, bool] | None:
    """The last entry of the next part, how many segments are new in it, and whether rows changed before."""
    window = pending.next_window(max_bytes=20, until_seq=99, read_lsn=read_lsn)
    if window is None or not window.is_part:
        return None
    pending.done(window)
    return window.last_seq, len(window.segments), window.changed


def test_a_part_has_chunks_of_one_moment_and_at_most_so_many_bytes_or_one_chunk() -> None:
    pending = _pending(has_snapshot=False)
    for seq, lsn, size in ((2, 20, 10), (3, 20, 10), (4, 20, 10), (5, 30, 5), (6, 30, 99)):
        _chunk(pending, seq, lsn=lsn, size=size)
    assert [_next(pending, 30) for _ in range(5)] == [(3, 2, False), (4, 1, False), (5, 1, False), (6, 1, False), None]
    assert pending.next_window(max_bytes=20, until_seq=99, read_lsn=30) is None
    _chunk(pending, 7, lsn=30, final=True)
    window = _window(pending, max_bytes=20, read_lsn=30)
    assert (window.is_snapshot, len(window.segments), len(window.chunks)) == (True, 5, 5)


def test_a_part_of_a_later_moment_waits_for_the_changes_up_to_it() -> None:
    pending = _pending(has_snapshot=False)
    _chunk(pending, 2, lsn=20)
    _chunk(pending, 3, lsn=40)
    assert [_next(pending, 30), _next(pending, 30)] == [(2, 1, False), None]
    _take(pending, _entry(4))
    assert _next(pending, 40) == (3, 1, True)


def test_a_change_counts_as_one_between_the_chunks_although_it_is_not_kept() -> None:
    pending = _pending(10, has_snapshot=False)
    _chunk(pending, 3, lsn=25)
    pending.keep(0)
    assert _next(pending, 30) == (3, 1, False)
    _take(pending, _entry(4))
    _chunk(pending, 5, lsn=40)
    assert _next(pending, 40) == (5, 1, True)


def test_a_window_has_the_origins_of_its_own_entries_only() -> None:
    pending = _pending()
    for seq in (2, 3, 4):
        commits = Commits([seq * 10 - 1, seq * 10], [1, 1], [7, 8], {1: (f"from {seq}", seq)})
        _take(pending, _entry(seq, Changes((_segment(seq),), commits)), origins=commits.origins_by_lsn())
    window = _window(pending, max_bytes=20)
    assert window.origins == {20: ("from 2", 2), 30: ("from 3", 3)}
    pending.done(window)
    assert set(pending.origins) == {4}


def test_a_change_gets_the_origin_of_its_transaction_or_none() -> None:
    rows = pa.table({envelope.LSN: pa.array([10, 20, 20, 30], pa.int64())})
    found = with_origins(rows, {20: ("upstream", 2**64 - 1), 30: ("streamed", 0)})
    assert found[envelope.ORIGIN].to_pylist() == [None, "upstream", "upstream", "streamed"]
    assert found[envelope.ORIGIN_LSN].to_pylist() == [None, 2**64 - 1, 2**64 - 1, None]
    assert with_origins(rows, {})[envelope.ORIGIN].to_pylist() == [None] * 4


def test_a_schema_version_without_rows_is_a_window() -> None:
    pending = _pending()
    _take(pending, _entry(2, _begins(2, 19), from_lsn=20))
    window = _window(pending)
    assert (window.segments, window.last_seq, window.schema_version) == ((), 2, 2)
    assert pending.through_seq(2) == 1
    pending.done(window)
    assert pending.through_seq(2) == 2


def test_a_schema_version_begins_with_the_entry_of_its_rows_and_not_with_the_one_before() -> None:
    pending = _pending(10)
    _take(pending, _entry(3, _changes(3, version=2), examined_lsn=20))
    before = _window(pending, max_bytes=10)
    assert (before.last_seq, before.schema_version) == (2, 0)
    pending.done(before)
    assert pending.complete_through(30) == 20
    assert _applied(pending) == [(3, ["data/t/3"], 2)]


NAME = schema("t", 1).columns[0].name


def _keyed(version: int, *names: str) -> TableSchema:
    known = schema("t", version)
    return replace(known, columns=tuple(replace(one, key=one.name in names) for one in known.columns))


def test_a_window_ends_where_other_columns_identify_the_rows() -> None:
    schemas = {1: _keyed(1, NAME), 2: _keyed(2, NAME), 3: _keyed(3), 4: _keyed(4, NAME)}
    pending = _pending()
    for seq, version in ((2, 1), (3, 2), (4, 3), (5, 3), (6, 4)):
        _take(pending, _entry(seq, Changes((_segment(seq, version=version),), Commits())), schemas=schemas)
    found = [keys for _, keys, _ in _applied(pending)]
    assert found == [["data/t/2", "data/t/3"], ["data/t/4", "data/t/5"], ["data/t/6"]]


def test_a_version_that_identifies_rows_otherwise_is_a_window_behind_the_changes() -> None:
    pending = _pending()
    entries = (_entry(2), _entry(3), _entry(4, _begins(2, 29), from_lsn=30, through_lsn=30))
    _take(pending, *entries, schemas={1: _keyed(1, NAME), 2: _keyed(2)})
    assert _applied(pending) == [(3, ["data/t/2", "data/t/3"], 0), (4, [], 2)]
    assert (pending.through_seq(4), pending.waiting_bytes) == (4, 0)


def test_a_version_that_was_forgotten_begins_again_where_it_began() -> None:
    """However long ago the catalog was examined: rows of the version before would be left out behind it."""
    schemas = {1: _keyed(1, NAME), 2: _keyed(2)}
    entries = [_entry(seq, _changes(seq, version=max(1, seq - 2)), examined_lsn=5) for seq in (2, 3, 4)]
    pending = _pending()
    _take(pending, *entries, schemas=schemas)
    pending.keep(0)
    for entry in entries:
        pending.take_again(entry, "t", newest_seq=4, schemas=schemas)
    assert _applied(pending) == [(3, ["data/t/2", "data/t/3"], 0), (4, ["data/t/4"], 2)]


def test_a_repair_is_a_window_of_its_own_between_those_around_it() -> None:
    pending = _pending(10, 10)
    _take(pending, _entry(4, Repair("t", 1, 1, 25, 30, (_segment(4),)), through_lsn=30), _entry(5, from_lsn=30))
    found = [keys for _, keys, _ in _applied(pending)]
    assert found == [["data/t/2", "data/t/3"], ["data/t/4"], ["data/t/5"]]


GAP = Gap(4, 1, 30, 50)
LOST = _entry(4, replace(opened(), lost=Lost("the slot was lost", ("t",))), through_lsn=50)
LATER = _entry(5, from_lsn=50, through_lsn=60)


def test_nothing_behind_an_open_gap_is_taken_and_what_closes_it_comes_first() -> None:
    pending = _pending(10, 10)
    _take(pending, LOST, gap=GAP)
    _take(pending, LATER)
    assert _applied(pending) == [(3, ["data/t/2", "data/t/3"], 0)]
    assert pending.is_halted
    assert (pending.through_seq(6), pending.complete_through(70)) == (3, 30)
    closed = replace(GAP, as_of_lsn=55, segments=(_segment(6),))
    pending.take_again(LOST, "t", newest_seq=6, gap=closed)
    repair = Repair("t", 1, 1, 55, 60, (_segment(6),), 4)
    for entry in (LATER, _entry(6, repair, from_lsn=60, through_lsn=60)):
        pending.take_again(entry, "t", newest_seq=6)
    assert [found[:2] for found in _applied(pending)] == [(4, ["data/t/6"]), (5, ["data/t/5"])]
    assert (pending.snapshot_lsn, pending.is_halted) == (55, False)


def test_a_gap_that_was_closed_without_a_row_is_passed_all_the_same() -> None:
    pending = _pending()
    _take(pending, LOST, gap=Gap(4, 1, 30, 50, 55))
    _take(pending, LATER)
    assert [found[:2] for found in _applied(pending)] == [(4, []), (5, ["data/t/5"])]


def test_entries_in_front_of_an_open_gap_that_were_forgotten_are_taken_again_up_to_it() -> None:
    pending = _pending(10, 10)
    _take(pending, LOST, gap=GAP)
    pending.keep(0)
    assert pending.skipped is not None
    assert pending.skipped[0] == 2
    for entry in (_entry(2), _entry(3)):
        pending.take_again(entry, "t", newest_seq=6)
    pending.take_again(LOST, "t", newest_seq=6, gap=GAP)
    assert _applied(pending) == [(3, ["data/t/2", "data/t/3"], 0)]
    assert pending.is_halted
