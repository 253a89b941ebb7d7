"""Windows: gap-free, whole entries, nothing before the snapshot."""

from dataclasses import replace

import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.entries import Changes, Commits, Entry, Lost, Repair, Segment, Snapshot, Table
from sluice.contract.schema import TableSchema
from sluice.manifest.gaps import Gap
from sluice_spark.kinds.changelog import with_origins
from sluice_spark.read.window import PendingChanges
from tests.support.manifests import opened, schema


def _segment(seq: int, *, size: int = 10) -> Segment:
    return Segment(f"data/t/{seq}", "t", 1, 1, size, "", seq * 10, seq * 10, {"i": 1})


def _pending(*sizes: int, has_snapshot: bool = True) -> PendingChanges:
    pending = PendingChanges(1, 1, 1, has_snapshot=has_snapshot)
    for seq, size in enumerate(sizes, start=2):
        pending.take_in(
            Entry(seq, 1, "", (seq - 1) * 10, seq * 10, "", Changes((_segment(seq, size=size),), Commits()), seq * 10),
            "t",
            through_lsn=(seq - 1) * 10,
        )
    return pending


def test_a_window_ends_before_the_entry_that_would_exceed_the_bytes() -> None:
    pending = _pending(10, 10, 10)
    window = pending.next_window(max_bytes=20, until_seq=99)
    assert window is not None
    assert window.last_seq == 3
    pending.done(window)
    assert pending.complete_through(40) == 30
    assert pending.through_seq(9) == 3


def test_what_waits_is_counted_in_bytes_however_it_leaves() -> None:
    pending = _pending(10, 20, 30, 40)
    assert pending.waiting_bytes == 100
    window = pending.next_window(max_bytes=30, until_seq=99)
    assert window is not None
    pending.done(window)
    assert pending.waiting_bytes == 70
    pending.keep(1)
    assert pending.waiting_bytes == 30
    pending.keep(0)
    assert pending.waiting_bytes == 0


def test_an_entry_is_never_cut() -> None:
    window = _pending(1000, 1).next_window(max_bytes=20, until_seq=99)
    assert window is not None
    assert (window.last_seq, len(window.segments)) == (2, 1)


def test_a_window_ends_with_the_round() -> None:
    window = _pending(1, 1, 1).next_window(max_bytes=99, until_seq=3)
    assert window is not None
    assert window.last_seq == 3
    assert _pending(1).next_window(max_bytes=99, until_seq=1) is None


def test_nothing_is_taken_before_the_snapshot_is_final_and_it_is_taken_alone() -> None:
    pending = _pending(1, has_snapshot=False)
    assert pending.next_window(max_bytes=99, until_seq=99) is None
    assert (pending.complete_through(99), pending.through_seq(9)) == (0, 0)
    pending.take_in(
        Entry(3, 1, "", 20, 30, "", Snapshot("t", 1, 1, 25, (_segment(3),), final=True)), "t", through_lsn=20
    )
    window = pending.next_window(max_bytes=99, until_seq=99)
    assert window is not None
    assert (window.is_snapshot, window.last_seq) == (True, 1)
    pending.done(window)
    assert pending.complete_through(30) == 25


def _chunk(pending: PendingChanges, seq: int, *, lsn: int, final: bool = False, size: int = 10) -> None:
    segments = () if final else (_segment(seq, size=size),)
    body = Snapshot("t", 1, 1, lsn, segments, final=final)
    pending.take_in(Entry(seq, 1, "", 20, 20, "", body), "t", through_lsn=20)


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
    window = pending.next_window(max_bytes=20, until_seq=99, read_lsn=30)
    assert window is not None
    assert (window.is_snapshot, len(window.segments), len(window.chunks)) == (True, 5, 5)


def test_a_part_of_a_later_moment_waits_for_the_changes_up_to_it() -> None:
    pending = _pending(has_snapshot=False)
    _chunk(pending, 2, lsn=20)
    _chunk(pending, 3, lsn=40)
    assert [_next(pending, 30), _next(pending, 30)] == [(2, 1, False), None]
    change = Changes((_segment(4),), Commits())
    pending.take_in(Entry(4, 1, "", 30, 40, "", change), "t", through_lsn=30)
    assert _next(pending, 40) == (3, 1, True)


def test_a_change_counts_as_one_between_the_chunks_although_it_is_not_kept() -> None:
    pending = _pending(10, has_snapshot=False)
    _chunk(pending, 3, lsn=25)
    pending.keep(0)
    assert _next(pending, 30) == (3, 1, False)
    pending.take_in(Entry(4, 1, "", 30, 40, "", Changes((_segment(4),), Commits())), "t", through_lsn=30)
    _chunk(pending, 5, lsn=40)
    assert _next(pending, 40) == (5, 1, True)


def test_a_window_has_the_origins_of_its_own_entries_only() -> None:
    pending = PendingChanges(1, 1, 1, has_snapshot=True)
    for seq in (2, 3, 4):
        commits = Commits([seq * 10 - 1, seq * 10], [1, 1], [7, 8], {1: (f"from {seq}", seq)})
        entry = Entry(seq, 1, "", (seq - 1) * 10, seq * 10, "", Changes((_segment(seq),), commits))
        pending.take_in(entry, "t", through_lsn=(seq - 1) * 10, origins=entry.body.commits.origins_by_lsn())  # type: ignore[union-attr]
    window = pending.next_window(max_bytes=20, until_seq=99)
    assert window is not None
    assert window.origins == {20: ("from 2", 2), 30: ("from 3", 3)}
    pending.done(window)
    assert set(pending.origins) == {4}


def test_a_change_gets_the_origin_of_its_transaction_or_none() -> None:
    rows = pa.table({envelope.LSN: pa.array([10, 20, 20, 30], pa.int64())})
    found = with_origins(rows, {20: ("upstream", 2**64 - 1), 30: ("streamed", 0)})
    assert found[envelope.ORIGIN].to_pylist() == [None, "upstream", "upstream", "streamed"]
    assert found[envelope.ORIGIN_LSN].to_pylist() == [None, 2**64 - 1, 2**64 - 1, None]
    assert with_origins(rows, {})[envelope.ORIGIN].to_pylist() == [None] * 4


def _begins(version: int, lsn: int) -> Table:
    return Table("t", "public", "t", None, 1, lsn=lsn, schema=schema("t", version))


def test_a_schema_version_without_rows_is_a_window() -> None:
    pending = PendingChanges(1, 1, 1, has_snapshot=True)
    pending.take_in(Entry(2, 1, "", 20, 20, "", _begins(2, 19)), "t", through_lsn=20)
    window = pending.next_window(max_bytes=100, until_seq=9)
    assert window is not None
    assert (window.segments, window.last_seq, window.schema_version) == ((), 2, 2)
    assert pending.through_seq(2) == 1
    pending.done(window)
    assert pending.through_seq(2) == 2


def test_a_schema_version_begins_with_the_entry_of_its_rows_and_not_with_the_one_before() -> None:
    pending = PendingChanges(1, 1, 1, has_snapshot=True)
    pending.take_in(Entry(2, 1, "", 10, 20, "", Changes((_segment(2),), Commits()), 20), "t", through_lsn=10)
    rows = (replace(_segment(3), schema_version=2),)
    body = Changes(rows, Commits(), tables=(_begins(2, 25),))
    pending.take_in(Entry(3, 1, "", 20, 30, "", body, 20), "t", through_lsn=20)
    before = pending.next_window(max_bytes=10, until_seq=9)
    assert before is not None
    assert (before.last_seq, before.schema_version) == (2, 0)
    pending.done(before)
    assert pending.complete_through(30) == 20
    both = pending.next_window(max_bytes=1000, until_seq=9)
    assert both is not None
    assert (both.segments, both.last_seq, both.schema_version) == (rows, 3, 2)


def _keyed(version: int, *names: str) -> TableSchema:
    known = schema("t", version)
    return replace(known, columns=tuple(replace(one, key=one.name in names) for one in known.columns))


def _windows(pending: PendingChanges) -> list[tuple[int, list[str], int]]:
    taken = []
    while (window := pending.next_window(max_bytes=999, until_seq=99)) is not None:
        taken.append((window.last_seq, [segment.key for segment in window.segments], window.schema_version))
        pending.done(window)
    return taken


def test_a_window_ends_where_other_columns_identify_the_rows() -> None:
    name = schema("t", 1).columns[0].name
    schemas = {1: _keyed(1, name), 2: _keyed(2, name), 3: _keyed(3), 4: _keyed(4, name)}
    pending = PendingChanges(1, 1, 1, has_snapshot=True)
    for seq, version in ((2, 1), (3, 2), (4, 3), (5, 3), (6, 4)):
        segment = replace(_segment(seq), schema_version=version)
        entry = Entry(seq, 1, "", (seq - 1) * 10, seq * 10, "", Changes((segment,), Commits()))
        pending.take_in(entry, "t", through_lsn=(seq - 1) * 10, schemas=schemas)
    assert [window[:2] for window in _windows(pending)] == [
        (3, ["data/t/2", "data/t/3"]),
        (5, ["data/t/4", "data/t/5"]),
        (6, ["data/t/6"]),
    ]


def test_a_version_that_identifies_rows_otherwise_is_a_window_behind_the_changes() -> None:
    schemas = {1: _keyed(1, schema("t", 1).columns[0].name), 2: _keyed(2)}
    pending = PendingChanges(1, 1, 1, has_snapshot=True)
    for seq in (2, 3):
        entry = Entry(seq, 1, "", (seq - 1) * 10, seq * 10, "", Changes((_segment(seq),), Commits()))
        pending.take_in(entry, "t", through_lsn=(seq - 1) * 10, schemas=schemas)
    pending.take_in(Entry(4, 1, "", 30, 30, "", _begins(2, 29)), "t", through_lsn=30, schemas=schemas)
    assert _windows(pending) == [(3, ["data/t/2", "data/t/3"], 0), (4, [], 2)]
    assert (pending.through_seq(4), pending.waiting_bytes) == (4, 0)


def test_a_version_that_was_forgotten_begins_again_where_it_began() -> None:
    """However long ago the catalog was examined: rows of the version before would be left out behind it."""
    schemas = {1: _keyed(1, schema("t", 1).columns[0].name), 2: _keyed(2)}
    bodies = {seq: Changes((_segment(seq),), Commits()) for seq in (2, 3)}
    bodies[4] = Changes((replace(_segment(4), schema_version=2),), Commits(), tables=(_begins(2, 35),))
    entries = [Entry(seq, 1, "", (seq - 1) * 10, seq * 10, "", body, 5) for seq, body in bodies.items()]
    pending = PendingChanges(1, 1, 1, has_snapshot=True)
    for entry in entries:
        pending.take_in(entry, "t", through_lsn=entry.from_lsn, schemas=schemas)
    pending.keep(0)
    for entry in entries:
        pending.take_again(entry, "t", newest_seq=4, schemas=schemas)
    assert _windows(pending) == [(3, ["data/t/2", "data/t/3"], 0), (4, ["data/t/4"], 2)]


def test_a_repair_is_a_window_of_its_own_between_those_around_it() -> None:
    pending = _pending(10, 10)
    body = Repair("t", 1, 1, 25, 30, (_segment(4),))
    pending.take_in(Entry(4, 1, "", 30, 30, "", body), "t", through_lsn=30)
    later = Entry(5, 1, "", 30, 40, "", Changes((_segment(5),), Commits()))
    pending.take_in(later, "t", through_lsn=30)
    taken = []
    while (window := pending.next_window(max_bytes=999, until_seq=99)) is not None:
        taken.append([segment.key for segment in window.segments])
        pending.done(window)
    assert taken == [["data/t/2", "data/t/3"], ["data/t/4"], ["data/t/5"]]


def _taken(pending: PendingChanges) -> list[tuple[int, list[str]]]:
    """(entry that is the marker, segments) of the windows that there are, each applied."""
    taken = []
    while (window := pending.next_window(max_bytes=999, until_seq=99)) is not None:
        taken.append((window.last_seq, [segment.key for segment in window.segments]))
        pending.done(window)
    return taken


def _lost(seq: int, through_lsn: int) -> Entry:
    body = replace(opened(), lost=Lost("the slot was lost", ("t",)))
    return Entry(seq, 2, "", 30, through_lsn, "", body, through_lsn)


def test_nothing_behind_an_open_gap_is_taken_and_what_closes_it_comes_first() -> None:
    pending = _pending(10, 10)
    gap = Gap(4, 1, 30, 50)
    pending.take_in(_lost(4, 50), "t", through_lsn=30, gap=gap)
    later = Entry(5, 2, "", 50, 60, "", Changes((_segment(5),), Commits()))
    pending.take_in(later, "t", through_lsn=50)
    assert _taken(pending) == [(3, ["data/t/2", "data/t/3"])]
    assert pending.is_halted
    assert (pending.through_seq(6), pending.complete_through(70)) == (3, 30)
    closed = replace(gap, as_of_lsn=55, segments=(_segment(6),))
    pending.take_again(_lost(4, 50), "t", newest_seq=6, gap=closed)
    pending.take_again(later, "t", newest_seq=6)
    repair = Entry(6, 2, "", 60, 60, "", Repair("t", 1, 1, 55, 60, (_segment(6),), 4))
    pending.take_again(repair, "t", newest_seq=6)
    assert _taken(pending) == [(4, ["data/t/6"]), (5, ["data/t/5"])]
    assert (pending.snapshot_lsn, pending.is_halted) == (55, False)


def test_a_gap_that_was_closed_without_a_row_is_passed_all_the_same() -> None:
    pending = _pending()
    pending.take_in(_lost(4, 50), "t", through_lsn=30, gap=Gap(4, 1, 30, 50, 55))
    pending.take_in(Entry(5, 2, "", 50, 60, "", Changes((_segment(5),), Commits())), "t", through_lsn=50)
    assert _taken(pending) == [(4, []), (5, ["data/t/5"])]


def test_entries_in_front_of_an_open_gap_that_were_forgotten_are_taken_again_up_to_it() -> None:
    pending = _pending(10, 10)
    gap = Gap(4, 1, 30, 50)
    pending.take_in(_lost(4, 50), "t", through_lsn=30, gap=gap)
    pending.keep(0)
    assert pending.skipped is not None
    assert pending.skipped[0] == 2
    for seq in (2, 3):
        entry = Entry(seq, 1, "", 10 * seq - 10, 10 * seq, "", Changes((_segment(seq),), Commits()))
        pending.take_again(entry, "t", newest_seq=6)
    pending.take_again(_lost(4, 50), "t", newest_seq=6, gap=gap)
    assert _taken(pending) == [(3, ["data/t/2", "data/t/3"])]
    assert pending.is_halted
