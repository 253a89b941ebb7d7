"""A boundary is reached under any load, and what it names can be read for as long as VACUUM keeps it."""

import uuid
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from sluice.contract import keys
from sluice.contract.applied import AppliedTable, Complete
from sluice.contract.entries import Progress, Snapshot
from sluice.store.memory import MemoryStore
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.progress.boundary import Boundaries, Boundary
from sluice_spark.progress.table_progress import Work
from tests.spark.changes import Manifest
from tests.spark.model import SCHEMA
from tests.support.extent import FULL
from tests.support.offers import offers, reports
from tests.support.recorded import row
from tests.unit.applier.ledgers import begin, commit, ledger_of, read


def _table(
    name: str, *, through_seq: int, committed_seq: int = 0, state: str = "live", version: int = 7
) -> AppliedTable:
    return row(name, state, path="", through_seq=through_seq, committed_seq=committed_seq, delta_version=version)


SINCE = dict.fromkeys(("a", "a/x", "b", "c"), 10)
"""From where on each table is in the lake."""


def _stated(tables: dict[str, AppliedTable], **since: int) -> Complete:
    """What is said of a boundary at entry 5 that no table holds up."""
    boundary = Boundary(5, 50)
    boundary.pass_by(tables, since_lsn=SINCE | since)
    complete = boundary.complete(tables, since_lsn=SINCE | since)
    assert complete is not None
    return complete


def test_a_table_whose_snapshot_is_later_than_the_boundary_is_left_out_of_it() -> None:
    tables = {"a": _table("a", through_seq=5), "new": _table("new", through_seq=5)}
    complete = _stated(tables, new=51)
    assert (list(complete.versions), complete.left_out) == (["public.a"], {"public.new": "snapshot"})
    assert complete.paths == {"public.a": tables["a"].path}


def test_a_table_that_is_called_as_the_target_of_another_one_has_a_name_of_its_own() -> None:
    table = _table("a", through_seq=5)
    complete = _stated({"a": table, "a/x": replace(table, target="x"), "b": _table("a/x", through_seq=5)})
    markers = {one.table_name: one.marker for one in complete.tables}
    assert markers == {"a": "a/1", "a/x": "a/x/1", '"a/x"': "b/1"}
    assert set(complete.versions) == {"public.a", "public.a/x", 'public."a/x"'}


class Lake:
    """Three tables and what their Delta versions hold, by the last entry."""

    def __init__(self, *, apart_seconds: float = 0.0) -> None:
        self.store = MemoryStore(uuid.uuid4().hex, prefix="shop/")
        self.manifest = Manifest(self.store)
        self.schemas = [replace(SCHEMA, table_id=str(16385 + number), table_name=f"t{number}") for number in range(3)]
        begin(self.manifest, *self.schemas)
        self.ledger = ledger_of(self.manifest, max_window_bytes=1 << 30, freshness_seconds=0.0)
        self.contents = {key: [0] for key in self.ledger.tables}
        self.running: list[Work] = []
        self.now = 0.0
        self.boundaries = Boundaries(self.ledger, apart_seconds=apart_seconds)
        self.published: Complete | None = None

    def read(self) -> None:
        read(self.ledger, self.manifest, since=self.now)

    def turn(self) -> None:
        """What the applier's loop does about the boundary and its workers."""
        self.boundaries.turn(now=self.now)
        for work in list(self.ledger.ready(now=self.now, boundary_seq=self.boundaries.seq)):
            self.ledger.begun(work, now=self.now)
            self.running.append(work)
        self.boundaries.publish(self.ledger.report(), self._say, now=self.now)

    def _say(self, complete: Complete, _: float) -> None:
        self.published = complete

    def end(self, place: int) -> None:
        """The window `place` of those under way is committed."""
        work = self.running.pop(place % len(self.running))
        self.contents[work.table_id].append(work.window.last_seq)
        commit(self.ledger, work)


def test_boundaries_go_on_when_every_table_began_after_the_one_that_was_set() -> None:
    lake = Lake()
    for schema in lake.schemas:
        lake.manifest.table(schema, generation=2, new=False)
        # As of an LSN that no entry has reached.
        lake.manifest.append(Snapshot(schema.table_id, 2, 1, lake.manifest.lsn + 5, (), final=True))
    for _ in range(4):
        lake.read()
        lake.turn()
        lake.manifest.unstored(*lake.schemas)
        while lake.running:
            lake.end(0)
        lake.turn()
    assert lake.published is not None
    assert set(lake.published.versions) == {"public.t0", "public.t1", "public.t2"}


def _applied(lake: Lake) -> None:
    lake.read()
    lake.turn()
    while lake.running:
        lake.end(0)
    lake.turn()


def test_a_boundary_is_published_once_the_catalog_was_examined_through_it() -> None:
    lake = Lake()
    lake.manifest.examined_lsn = lake.manifest.lsn
    lake.manifest.unstored(*lake.schemas)
    reached = lake.manifest.lsn
    for _ in range(2):
        _applied(lake)
        assert lake.published is None or lake.published.lsn < reached
        assert {row.complete_through_lsn for row in lake.ledger.report().values()} == {lake.manifest.examined_lsn}
    lake.manifest.examined_lsn = None
    lake.manifest.append(Progress())
    _applied(lake)
    assert lake.published is not None
    assert lake.published.lsn == reached
    assert {row.complete_through_lsn for row in lake.ledger.report().values()} == {reached}


def test_a_boundary_has_reached_the_last_commit_that_the_stream_brought_and_no_time_of_a_clock() -> None:
    lake = Lake()
    lake.manifest.unstored(*lake.schemas)
    committed_us = lake.manifest.lsn
    lake.manifest.append(Progress(), through_lsn=lake.manifest.lsn + 5)
    _applied(lake)
    assert lake.published is not None
    assert lake.published.lsn == committed_us + 5
    assert lake.published.reached_us == committed_us < lake.published.time_us  # which is that of the snapshots


def test_a_boundary_in_front_of_a_shape_that_a_look_has_found_is_never_published() -> None:
    lake = Lake()
    lake.manifest.examined_lsn = lake.manifest.lsn
    lake.manifest.unstored(*lake.schemas)
    reached = lake.manifest.lsn
    _applied(lake)
    first = lake.schemas[0]
    lake.manifest.table(replace(first, version=2, columns=first.columns[:1]), state="live")
    lake.manifest.examined_lsn = None
    lake.manifest.append(Progress())
    lake.read()
    lake.turn()
    row = lake.ledger.report()[first.table_id]
    assert row.complete_through_lsn < reached, "the lake table has not got the shape yet"
    assert lake.published is None or lake.published.lsn < reached
    _applied(lake)
    lake.manifest.unstored(*lake.schemas)
    _applied(lake)
    assert lake.published is not None
    assert lake.published.lsn == lake.manifest.lsn


def test_a_table_that_is_not_live_is_complete_no_further_than_the_catalog_was_examined_before() -> None:
    lake = Lake()
    before = lake.manifest.lsn
    lake.manifest.examined_lsn = before
    lake.manifest.unstored(lake.schemas[1])
    lake.manifest.table(lake.schemas[0], state="pending", new=False)
    lake.manifest.examined_lsn = None
    lake.manifest.unstored(lake.schemas[1])
    _applied(lake)
    rows = lake.ledger.report()
    assert rows[lake.schemas[0].table_id].complete_through_lsn == before
    assert rows[lake.schemas[1].table_id].complete_through_lsn == lake.manifest.lsn


def test_a_backlog_that_is_over_holds_up_no_later_boundary() -> None:
    lake = Lake(apart_seconds=5.0)
    for before, after in ((0.0, 1000.0), (1006.0, 1007.0)):
        lake.manifest.unstored(*lake.schemas)
        lake.now = before
        lake.read()
        lake.turn()
        assert lake.boundaries.seq == lake.manifest.seq
        lake.now = after
        while lake.running:
            lake.end(0)
        lake.turn()
    assert lake.published is not None


@settings(max_examples=60 if FULL else 20, deadline=None, phases=[Phase.generate])
@given(turns=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=20, max_size=40))
def test_boundaries_are_published_under_load_and_each_version_holds_just_its_entries(
    turns: list[tuple[int, int]],
) -> None:
    lake, published = Lake(), set[int]()
    for turn, (table, ending) in enumerate(turns):
        for schema in lake.schemas:
            lake.manifest.unstored(schema)
        lake.manifest.unstored(lake.schemas[table])
        lake.read()
        lake.turn()
        assert lake.running, "there is always a window under way"
        # Any window may end next, but none takes for ever.
        lake.end(ending if turn % 2 else 0)
        lake.turn()
        complete, lake.published = lake.published, None
        if complete is None:
            continue
        published.add(complete.seq)
        for key, state in lake.ledger.state.tables.items():
            version = complete.versions[f"public.{state.table_name}"]
            held = lake.contents[key][version]
            later = [seq for seq in lake.contents[key] if held < seq <= complete.seq]
            assert held <= complete.seq, "a version holds an entry past the boundary"
            assert not later, "a version lacks an entry before the boundary"
    assert len(published) >= len(turns) // 10


HOUR = 3600.0


class Published:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
        self.reports = reports(lake.store, offers(MemoryStore(uuid.uuid4().hex, prefix="")))
        monkeypatch.setattr("sluice_spark.progress.reports.time.monotonic", lambda: lake.now)
        self.lake = lake

    def turn(self) -> None:
        lake = self.lake
        lake.read()
        lake.boundaries.turn(now=lake.now)
        lake.boundaries.publish(lake.ledger.report(), self.reports.complete, now=lake.now)

    def newest(self) -> Complete:
        return Complete.decode(self.lake.store.get(max(self.lake.store.list(keys.APPLY_COMPLETE))))


def test_an_idle_pipeline_names_the_versions_that_maintenance_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPTIMIZE removes the files of the version that was named; a VACUUM later than the retention deletes them."""
    published = Published(monkeypatch, lake := Lake())
    published.turn()
    assert published.newest().versions["public.t0"] == 0
    table_id = lake.schemas[0].table_id
    progress = lake.ledger.tables[table_id]
    lake.ledger.stands_at(table_id, progress, ExaminedVersion(1, progress.place.marker, seen=True))
    for _ in range(4 * 180):
        lake.now += 20.0
        published.turn()
    assert not published.reports.completed_within(HOUR / 2) or published.newest().versions["public.t0"] == 1


def test_a_boundary_that_a_slow_table_reached_late_is_as_old_as_the_versions_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one table works off its backlog for three hours, the others went on."""
    published = Published(monkeypatch, lake := Lake())
    published.turn()

    def begin_windows() -> None:
        for work in list(lake.ledger.ready(now=lake.now, boundary_seq=lake.boundaries.seq)):
            lake.ledger.begun(work, now=lake.now)
            lake.running.append(work)

    def end_all_but(slow: str) -> None:
        for work in [one for one in lake.running if one.table_id != slow]:
            lake.end(lake.running.index(work))

    slow = lake.schemas[2].table_id
    for schema in lake.schemas:
        lake.manifest.unstored(schema)
    lake.read()
    lake.now += 5.0
    begin_windows()
    published.turn()
    end_all_but(slow)
    published.turn()
    for _ in range(18):
        lake.manifest.unstored(lake.schemas[0])
        lake.read()
        lake.now += HOUR / 6
        begin_windows()
        end_all_but(slow)
        published.turn()
    lake.end(0)
    published.turn()
    named = published.newest().versions["public.t0"]
    stands = lake.ledger.tables[lake.schemas[0].table_id].place.version
    assert (named, stands) == (1, 19)
    assert not published.reports.completed_within(HOUR / 2), "version 1 was replaced almost three hours ago"
