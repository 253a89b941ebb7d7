"""What the applier reports about a table: how far it is, and why it does not advance."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.chunks import BlockRange
from sluice.contract.entries import Changes, Progress, Snapshot, Table
from sluice.contract.lake_layout import LakeLayout
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.reasons import ReasonCode
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.reader import load_state, read_entries
from sluice.store.memory import MemoryStore
from sluice_spark.applied_window import Applied
from sluice_spark.lake.commit_way import CommitWay
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.progress.boundary import Boundaries
from sluice_spark.progress.ledger import LOOK_PAUSE_SECONDS, LOOK_SECONDS, Ledger
from sluice_spark.progress.restart import restore
from sluice_spark.progress.table_progress import TableProgress, Work
from sluice_spark.read.window import PendingChanges, Window
from tests.spark.changes import Change, Manifest
from tests.spark.heap import FACTS, RANGES, Heap
from tests.spark.model import SCHEMA
from tests.support.manifests import changes, open_log, put, snapshot, table
from tests.support.reasons import because
from tests.unit.applier.ledgers import NOWHERE, begin, ledger_of, read

OTHER = replace(SCHEMA, table_id="16386", table_name="others")


def _with_a_change(manifest: Manifest) -> tuple[Ledger, int]:
    """The table is in the lake with all of the manifest: its snapshot and one change, the last entry."""
    begin(manifest, SCHEMA)
    seq = manifest.transaction([Change("i", {"id": 1})], SCHEMA)
    return ledger_of(manifest, ExaminedVersion(1, seq)), seq


def _applied(ledger: Ledger, table_id: str, window: Window) -> None:
    work = Work(table_id, ledger.tables[table_id], ledger.state.tables[table_id], window)
    ledger.applied(work, Applied(ExaminedVersion(2, window.last_seq), window.last_seq, 1, 1))


def _beside(ledger: Ledger, work: Work, **said: Any) -> None:
    """The window of `work` is not in the lake table: it was a part of a snapshot."""
    ledger.applied(work, Applied(work.progress.place, work.window.last_seq, 1, committed=False, **said))


def _ready(ledger: Ledger, manifest: Manifest) -> list[Work]:
    read(ledger, manifest)
    return list(ledger.ready(now=1e9, boundary_seq=0))


def _log(ledger: Ledger) -> AppliedLog:
    written = AppliedLog(1, "i", "2026-01-01T00:00:00+00:00", ledger.report())
    return AppliedLog.decode(written.encode())


def test_a_window_that_is_tried_again_shows_why_until_it_is_applied(manifest: Manifest) -> None:
    ledger, seq = _with_a_change(manifest)
    known = ledger.tables["16385"]
    known.failed("Spark could not commit (SparkException)", now=0.0, at=0.0, passing=False)
    row = ledger.report()["16385"]
    assert (row.state, row.why, row.failing) == ("live", known.problem, True)
    _applied(ledger, "16385", Window((), seq))
    again = ledger.report()["16385"]
    assert (again.reason, again.failing) == ("", False)


def test_the_settings_of_a_target_that_may_change_are_reported_as_they_hold(manifest: Manifest) -> None:
    begin(manifest, SCHEMA)
    layout = LakeLayout((("team", "shop"),), cluster_by=("id",))
    history = LakeTarget("history", track=("id",), layout=layout)
    soft = LakeTarget(name="soft", deletes="soft", soft_delete_retention=9.5)
    tables = {SCHEMA.qualified_name: {"targets": [target.encode() for target in (history, soft)]}}
    rows = {row.target: row for row in _log(ledger_of(manifest, NOWHERE, tables=tables)).tables.values()}
    assert (rows[""].track, rows[""].layout) == (("id",), layout)
    assert (rows["soft"].soft_delete_retention, rows["soft"].layout) == (9.5, LakeLayout())


def test_a_window_that_is_tried_again_says_when_and_waits_longer_each_time() -> None:
    known = TableProgress(PendingChanges(1, 1, 1))
    due = []
    for _ in range(12):
        known.failed("the bucket says no", now=50.0, at=0.0, passing=False)
        assert known.problem is not None
        due.append(datetime.fromisoformat(known.problem.parameters["again"]).timestamp())
        assert due[-1] == int(known.not_before - 50.0)
    assert due == sorted(due)
    assert due[-2:] == [300.0, 300.0]


def test_a_table_that_is_not_in_the_lake_yet_fails_visibly_while_the_error_may_pass(manifest: Manifest) -> None:
    manifest.table(SCHEMA)
    ledger = ledger_of(manifest, NOWHERE)
    known = ledger.tables["16385"]
    for second in range(50):
        known.failed("StoreUnavailable: no answer", now=float(second), at=0.0, passing=True)
    row = ledger.report()["16385"]
    assert (row.state, row.why, row.failing) == ("snapshot", known.problem, True)


def test_the_way_of_the_newest_changes_stays_through_empty_windows_snapshots_and_restarts(manifest: Manifest) -> None:
    ledger, seq = _with_a_change(manifest)
    table = ledger.state.tables["16385"]
    work = Work("16385", ledger.tables["16385"], table, Window((), seq))

    def reported(**applied: Any) -> tuple[str, str, int]:
        ledger.applied(work, Applied(ExaminedVersion(2, seq), seq, **applied))
        row = ledger.report()["16385"]
        return row.way, row.way_reason, row.files

    assert reported() == ("", "", -1)
    refused = CommitWay("merge", "the table is partitioned")
    assert reported(way=refused) == ("merge", "the table is partitioned", -1)
    assert reported(way=CommitWay("direct"), files=3) == ("direct", "", 3)
    assert reported(committed=False) == ("direct", "", 3)
    assert reported(way=refused) == ("merge", "the table is partitioned", -1)
    assert restore(table, _log(ledger), place=ExaminedVersion(2, seq)).way == refused


def _two_tables(manifest: Manifest, *, entries: int) -> None:
    """Every third entry has changes of the first table, every one of the second."""
    begin(manifest, SCHEMA, OTHER)
    for number in range(entries):
        schemas = (SCHEMA, OTHER) if number % 3 == 0 else (OTHER,)
        manifest.entry([([Change("i", {"id": number})], schema) for schema in schemas])


def _opened(manifest: Manifest, *, first: int = 5, other: int = 5, log: AppliedLog | None = None) -> Ledger:
    """With the markers of both tables, by default those of their snapshots."""
    places = {"16385": ExaminedVersion(1, first), "16386": ExaminedVersion(1, other)}
    return ledger_of(manifest, places, log=log, max_window_bytes=1)


def _following(manifest: Manifest, *, entries: int) -> Ledger:
    _two_tables(manifest, entries=entries)
    ledger = _opened(manifest)
    read(ledger, manifest)
    return ledger


def test_what_waits_for_a_stopped_table_is_forgotten_and_its_position_stays(manifest: Manifest) -> None:
    ledger = _following(manifest, entries=90)
    ledger.tables["16385"].stale = because("a column was dropped")
    before = ledger.report()["16385"]
    ledger.trim()
    for _ in range(30):
        manifest.transaction([Change("u", {"id": 1})], SCHEMA)
    assert [work.table_id for work in _ready(ledger, manifest)] == ["16386"]
    known = ledger.tables["16385"]
    assert (len(known.pending.changes), len(known.pending.origins)) == (0, 0)
    now = ledger.report()["16385"]
    assert (now.complete_through_lsn, now.through_seq) == (before.complete_through_lsn, before.through_seq)
    assert ledger.behind() == {}


def test_a_start_reads_from_the_table_that_works_and_keeps_what_a_stopped_one_had_reached(manifest: Manifest) -> None:
    _two_tables(manifest, entries=90)
    ledger = _opened(manifest, first=8, other=manifest.seq)
    read(ledger, manifest)
    ledger.tables["16385"].stale = because("a column was dropped")
    before = ledger.report()["16385"]
    again = _opened(manifest, first=8, other=manifest.seq, log=_log(ledger))
    assert again.read_seq >= manifest.seq - 1
    read(again, manifest)
    row = again.report()["16385"]
    assert row.state == "stale"
    assert (row.through_seq, row.complete_through_lsn) == (before.through_seq, before.complete_through_lsn)


def test_a_forgotten_table_is_in_no_report_and_a_window_of_it_that_ends_late_harms_nothing(manifest: Manifest) -> None:
    ledger = _following(manifest, entries=30)
    work = next(work for work in _ready(ledger, manifest) if work.table_id == "16385")
    ledger.begun(work, now=0.0)
    manifest.table(SCHEMA, state="detached", reason="dropped", new=False)
    read(ledger, manifest)
    assert ledger.report().keys() == {"16385", "16386"}
    manifest.table(SCHEMA, state="detached", new=False, publishes=None)
    read(ledger, manifest)
    _applied(ledger, "16385", work.window)  # a window that ends late
    for one in (ledger, _opened(manifest)):
        assert {item.table_id for item in _ready(one, manifest)} == {"16386"}
        assert one.report().keys() == one.report(one.moved() | {"16385"}).keys() == {"16386"}
        assert not one.may_apply("16385")
        assert "16385" not in one.maintainable()


def test_a_table_that_fails_keeps_little_and_gets_every_entry_in_order_when_it_goes_on(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_spark.progress.ledger.KEPT_WHILE_WAITING", 4)
    _two_tables(manifest, entries=60)
    ledger = _opened(manifest)
    wanted = _changed(manifest)
    ledger.tables["16385"].failures = 1
    read(ledger, manifest)
    pending = ledger.tables["16385"].pending
    assert len(pending.changes) == 4
    in_flight = pending.next_window(max_bytes=1 << 30, until_seq=ledger.read_seq)
    assert in_flight is not None
    pending.keep(0)
    done = [in_flight.last_seq]
    _applied(ledger, "16385", in_flight)
    while done[-1] != wanted[-1] or ledger.behind():
        _take_again(ledger, manifest)
        window = pending.next_window(max_bytes=1, until_seq=ledger.read_seq)
        if window is not None:
            _applied(ledger, "16385", window)
            done.append(window.last_seq)
    assert done == wanted[3:]
    assert ledger.behind() == {}
    assert ledger.report()["16385"].complete_through_lsn == ledger.read_lsn


def test_idle_tables_are_looked_at_now_and_then_one_after_the_other(manifest: Manifest) -> None:
    seq = begin(manifest, SCHEMA, OTHER)
    ledger = _opened(manifest, first=seq, other=seq)
    read(ledger, manifest)

    def given(now: float) -> list[tuple[str, int]]:
        return [(table_id, len(window.segments)) for table_id, _, _, window in ledger.ready(now=now, boundary_seq=0)]

    assert given(0.0) == []
    assert given(LOOK_SECONDS - 1) == []
    assert given(LOOK_SECONDS) == [("16385", 0)]
    assert given(LOOK_SECONDS) == [], "one at a time"
    assert given(LOOK_SECONDS + LOOK_PAUSE_SECONDS) == [("16386", 0)]
    assert given(LOOK_SECONDS + 2 * LOOK_PAUSE_SECONDS) == [], "each in its turn"
    ledger.tables["16385"].stale = because("gone")
    assert [table_id for table_id, _ in given(2 * LOOK_SECONDS + 1)] == ["16386"]


def _changed(manifest: Manifest) -> list[int]:
    """The entries behind the snapshots with changes of table 16385."""
    bodies = [(entry.seq, entry.body) for entry, _ in read_entries(manifest.store, after_seq=5)]
    segments = [(seq, item) for seq, body in bodies if isinstance(body, Changes) for item in body.segments]
    return [seq for seq, item in segments if item.table_id == "16385"]


def _pause(manifest: Manifest, schema: TableSchema = SCHEMA, *, paused: bool, state: State = State.LIVE) -> None:
    manifest.append(Table(schema.table_id, schema.schema_name, schema.table_name, state, 1, paused=paused))


def _take_again(ledger: Ledger, manifest: Manifest) -> None:
    for table_id, seq in ledger.behind().items():
        for entry, _ in read_entries(manifest.store, after_seq=seq - 1, limit=7):
            if entry.seq <= ledger.read_seq:
                ledger.take_again(table_id, entry)


def _drained(ledger: Ledger, manifest: Manifest) -> list[int]:
    """The last entries of the windows of table 16385 that there are, each applied."""
    done: list[int] = []
    while True:
        _take_again(ledger, manifest)
        found = [work for work in ledger.ready(now=1e9, boundary_seq=0) if work.window.segments]
        mine = [work.window for work in found if work.table_id == "16385"]
        if not mine and not ledger.behind():
            return done
        for window in mine:
            _applied(ledger, "16385", window)
            done.append(window.last_seq)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_paused_table_gets_no_window_and_every_entry_in_order_when_it_is_resumed(
    manifest: Manifest, *, restarted: bool
) -> None:
    ledger = _following(manifest, entries=9)
    _pause(manifest, paused=True)
    for number in range(30):
        manifest.entry([([Change("u", {"id": number})], schema) for schema in (SCHEMA, OTHER)])
    read(ledger, manifest)
    if restarted:
        ledger = _opened(manifest, log=_log(ledger))
    assert {work.table_id for work in _ready(ledger, manifest)} == {"16386"}
    row = ledger.report()["16385"]
    assert (row.state, row.failing, row.through_seq) == ("paused", False, 5), "nothing that waits may be deleted"
    assert len(ledger.tables["16385"].pending.changes) == 0, "what waits fills no memory"
    assert ledger.pending_entries() == len(ledger.tables["16386"].pending.changes)
    _pause(manifest, paused=False)
    read(ledger, manifest)
    assert _drained(ledger, manifest) == _changed(manifest)
    row = ledger.report()["16385"]
    assert (row.state, row.complete_through_lsn) == ("live", ledger.read_lsn)


def test_a_snapshot_of_several_entries_around_a_pause_comes_in_parts_and_then_whole(manifest: Manifest) -> None:
    manifest.table(SCHEMA)
    _pause(manifest, paused=True, state=State.SNAPSHOT)
    for key in (1, 3):
        manifest.snapshot([{"id": key}], SCHEMA, final=False)
    ledger = ledger_of(manifest, NOWHERE)
    read(ledger, manifest)
    manifest.snapshot([{"id": 2}], SCHEMA)
    assert _ready(ledger, manifest) == []
    _pause(manifest, paused=False)
    (work,) = _ready(ledger, manifest)
    assert work.window.is_part
    assert [len(work.window.segments), work.window.last_seq] == [3, manifest.seq - 1]
    ledger.begun(work, now=1e9)
    _beside(ledger, work)
    ledger.busy.clear()
    (work,) = _ready(ledger, manifest)
    assert work.window.is_snapshot
    assert sum(segment.rows for segment in work.window.segments) == 3


@pytest.mark.parametrize("in_parts", [True, False])
def test_chunks_that_come_while_a_table_is_paused_are_in_the_snapshot_once(*, in_parts: bool) -> None:
    """The changes between them are taken again when it is resumed, and the chunks among those are not."""
    heap = Heap({key: {"id": key} for key in range(4)}, {key: 2 * key for key in range(4)})
    manifest = heap.manifest
    heap.read(0)
    manifest.transaction([Change("u", {"id": 1})], SCHEMA)
    ledger = ledger_of(manifest, NOWHERE)
    read(ledger, manifest)
    for place, paused in ((1, True), (2, False)):
        _pause(manifest, paused=paused, state=State.SNAPSHOT)
        heap.read(place)
        read(ledger, manifest)
    _take_again(ledger, manifest)
    heap.read(3)
    heap.finish()
    read(ledger, manifest)
    pending = ledger.tables["16385"].pending
    pending.in_parts = in_parts
    window = pending.next_window(max_bytes=2**30, until_seq=ledger.read_seq, read_lsn=ledger.read_lsn)
    while window is not None and not window.is_snapshot:
        pending.done(window)
        window = pending.next_window(max_bytes=2**30, until_seq=ledger.read_seq, read_lsn=ledger.read_lsn)
    assert window is not None
    found = [segment.key for segment in window.segments]
    assert len(found) == len(set(found)) == RANGES


def test_what_cannot_come_in_parts_comes_whole_and_no_other_part_is_given_out(manifest: Manifest) -> None:
    manifest.table(SCHEMA)
    manifest.snapshot([{"id": 1}], SCHEMA, final=False)
    ledger = ledger_of(manifest, NOWHERE)
    (work,) = _ready(ledger, manifest)
    _beside(ledger, work, not_in_parts="it is so")
    manifest.snapshot([{"id": 2}], SCHEMA, final=False)
    assert _ready(ledger, manifest) == []
    manifest.snapshot([{"id": 3}], SCHEMA)
    (work,) = _ready(ledger, manifest)
    assert (work.window.is_snapshot, len(work.window.segments), work.window.chunks) == (True, 3, ())


def test_a_part_of_a_moment_that_the_manifest_has_not_reached_is_not_given_out() -> None:
    heap = Heap({1: {"id": 1}, 2: {"id": 2}}, {1: 0, 2: 2})
    manifest = heap.manifest
    heap.read(0)
    ahead = manifest.lsn + 10
    segment = manifest.segment([Change("i", {"id": 2}, lsn=ahead)], SCHEMA)
    blocks = (BlockRange("1", 2, 4),)
    manifest.append(Snapshot(SCHEMA.table_id, 1, 1, ahead, (segment,), False, 1, FACTS, (), blocks))
    ledger = ledger_of(manifest, NOWHERE)
    given = []
    for _ in range(2):
        for _ in range(2):
            for work in _ready(ledger, manifest):
                given.append((work.window.last_seq, work.window.changed))
                _beside(ledger, work)
        given.append((0, False))
        # From between the moments: it ends where the second chunk was read.
        manifest.transaction([Change("u", {"id": 2})], SCHEMA)
    assert given == [(3, False), (0, False), (4, True), (0, False)]


def test_a_lake_table_is_not_maintained_while_its_next_snapshot_is_applied_in_parts(manifest: Manifest) -> None:
    """Maintenance removes the logs of builds, for it takes none to be under way."""
    manifest.table(SCHEMA, generation=2)
    manifest.snapshot([{"id": 1}], SCHEMA, generation=2, final=False)
    ledger = ledger_of(manifest, ExaminedVersion(7))
    (work,) = _ready(ledger, manifest)
    _beside(ledger, work)
    assert ledger.maintainable() == []
    manifest.snapshot([{"id": 2}], SCHEMA, generation=2)
    for _ in range(2):
        (work,) = _ready(ledger, manifest)
        ledger.applied(work, Applied(ExaminedVersion(7), work.window.last_seq, 1))
    assert ledger.maintainable() == ["16385"]


def test_a_paused_table_holds_up_no_boundary_and_is_named_in_it(manifest: Manifest) -> None:
    _two_tables(manifest, entries=3)
    _pause(manifest, paused=True)
    ledger = _opened(manifest, other=manifest.seq)
    read(ledger, manifest)
    boundaries = Boundaries(ledger, apart_seconds=0.0)
    boundaries.turn(now=1.0)
    stated: list[Complete] = []
    boundaries.publish(ledger.report(), lambda one, _: stated.append(one), now=1.0)
    assert [(one.lsn, one.left_out) for one in stated] == [(ledger.read_lsn, {"public.items": "paused"})]


def test_a_table_is_complete_no_further_than_it_had_the_shape_before_the_one_that_waits(store: MemoryStore) -> None:
    """A look had found that its columns changed, long before a row that has them came."""
    log = open_log(store)
    log.append(table("7"))
    log.append(snapshot("7", snapshot_lsn=0))
    put(log, Progress(), through_lsn=10)
    log.examined(10)
    put(log, Progress(), through_lsn=20)
    log.append(table("7", version=None, state=State.PENDING))
    log.examined(20)
    begins = replace(table("7", version=2), state=None, lsn=25)
    put(log, replace(changes(30, version=2), tables=(begins,)), through_lsn=30)
    log.append(table("7", version=None, state=State.LIVE))
    log.examined(30)
    put(log, Progress(), through_lsn=40)
    ledger = ledger_of(store)
    read(ledger, store)
    row = ledger.report()["7"]
    assert (row.state, row.complete_through_lsn) == ("live", 10)
    window = ledger.tables["7"].pending.next_window(max_bytes=1000, until_seq=load_state(store).seq)
    assert window is not None
    _applied(ledger, "7", window)
    assert ledger.report()["7"].complete_through_lsn == 30


def _taken(ledger: Ledger) -> set[str]:
    return {key for key, row in ledger.report().items() if row.why and row.why.code == ReasonCode.PATH_TAKEN}


@pytest.mark.parametrize("name", [SCHEMA.table_name, OTHER.table_name])
def test_a_target_that_would_stand_where_a_table_stands_is_not_written_when_its_table_begins_again_either(
    manifest: Manifest, name: str
) -> None:
    _two_tables(manifest, entries=1)
    fed = {"targets": [{"kind": "mirror"}, {"kind": "mirror", "name": name}]}
    ledger = ledger_of(manifest, NOWHERE, tables={SCHEMA.qualified_name: fed})
    ledger.separate(())
    assert _taken(ledger) == {f"16385/{name}"}
    manifest.table(SCHEMA, generation=2, new=False)
    read(ledger, manifest)
    assert {row.generation for key, row in ledger.report().items() if key.startswith("16385")} == {2}
    assert _taken(ledger) == {f"16385/{name}"}
