"""Tables that cannot continue, however many they are, stop neither the reading nor the other tables."""

import threading
import uuid
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.contract.schema import TableSchema
from sluice.store.memory import MemoryStore
from sluice_spark import applier as applier_module
from sluice_spark.applier import LONGEST_APART_SECONDS, RESTING_SECONDS, Applier
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress import intake, ledger
from sluice_spark.progress.boundary import Boundary
from sluice_spark.progress.ledger import Ledger
from tests.spark.changes import Manifest
from tests.spark.model import SCHEMA
from tests.unit.applier.ledgers import NOWHERE, begin, commit, ledger_of, read

OTHER = replace(SCHEMA, table_id="16386", table_name="others")


BACKLOG = 2_000


@pytest.fixture
def small_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the entries that are held in memory."""
    monkeypatch.setattr(intake, "MAX_BACKLOG", BACKLOG)
    monkeypatch.setattr(intake, "READ_AT_ONCE", 50)
    monkeypatch.setattr(ledger, "KEPT_WHILE_WAITING", BACKLOG // 4)


def _reads_all(found: Ledger, manifest: Manifest, *, rounds: int) -> None:
    reading = intake.Intake(manifest.store, found, poll_seconds=0.0)
    for _ in range(rounds):
        reading.read(now=1.0)
        _apply_all(found)
    assert found.read_seq == manifest.seq


def _apply_all(found: Ledger) -> None:
    for work in list(found.ready(now=1.0, boundary_seq=0)):
        commit(found, work)


def _tables(count: int) -> list[TableSchema]:
    return [replace(SCHEMA, table_id=str(30_000 + number), table_name=f"t{number}") for number in range(count)]


@pytest.mark.usefixtures("small_backlog")
def test_a_long_snapshot_does_not_stop_the_reading_for_ever(manifest: Manifest) -> None:
    """Thousands of entries with changes of ten tables arrive while their snapshots are taken."""
    begin(manifest, OTHER)
    live, waiting = ExaminedVersion(0, manifest.seq), _tables(10)
    for schema in waiting:
        manifest.table(schema)
    for _ in range(3 * BACKLOG // 20):
        manifest.unstored(*waiting)
    manifest.unstored(OTHER)
    for schema in waiting:
        manifest.snapshot([], schema)
    manifest.unstored(waiting[0])
    places = {OTHER.table_id: live} | {schema.table_id: NOWHERE for schema in waiting}
    _reads_all(ledger_of(manifest, places), manifest, rounds=200)


@pytest.mark.usefixtures("small_backlog")
def test_forty_quarantined_tables_do_not_stop_the_others(manifest: Manifest) -> None:
    bad = _tables(40)
    begin(manifest, OTHER, *bad)
    for _ in range(120):
        manifest.unstored(*bad)
    manifest.unstored(OTHER)
    found = ledger_of(manifest)
    for schema in bad:
        known = found.tables[schema.table_id]
        for _ in range(5):
            known.failed("the bucket says no", now=0.0, at=0.0, passing=False)
        known.not_before = 1e9
        assert known.quarantined
    _reads_all(found, manifest, rounds=50)


def test_a_boundary_says_one_thing_of_a_name_that_two_tables_had(manifest: Manifest) -> None:
    """Dropped and created again: the new table is live in the same lake folder."""
    begin(manifest, SCHEMA)
    manifest.table(SCHEMA, state="detached", reason="dropped at the source", new=False)
    again = replace(SCHEMA, table_id="20000")
    begun = manifest.table(again)
    manifest.snapshot([], again)
    found = ledger_of(manifest, {"16385": ExaminedVersion(5, 2), "20000": ExaminedVersion(6, begun)})
    read(found, manifest)
    boundary = Boundary(found.read_seq, found.read_lsn)
    since = {table_id: known.pending.snapshot_lsn for table_id, known in found.tables.items()}
    boundary.pass_by(found.report(), since_lsn=since)
    complete = boundary.complete(found.report(), since_lsn=since)
    assert complete is not None
    assert not complete.versions.keys() & complete.left_out.keys()


def test_an_applier_with_a_long_window_does_not_rest_however_long_ago_it_began() -> None:
    """Its lease would last four times as long, and as long nobody could take over from a machine that is gone."""
    options = ApplyOptions(pipeline="p", spool_uri="file:///s", lake_uri="file:///l", idle_lease_seconds=120.0)
    applier = Applier(options, MemoryStore(uuid.uuid4().hex), cast("Any", None), stop=threading.Event())
    assert not applier._rests()
    applier._worked_at -= 2 * RESTING_SECONDS
    assert applier._rests()
    applier._running[Future()] = cast("Any", "a window")
    assert not applier._rests()


def test_a_store_that_hung_during_one_report_holds_up_neither_the_next_one_nor_boundaries(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request may wait for its time limit of 75 s and succeed when it is tried again."""
    now, written = 1000.0, list[float]()

    def write(*_: object, **__: object) -> None:
        nonlocal now
        written.append(now)
        now += 120.0 if len(written) == 1 else 0.1

    monkeypatch.setattr(applier_module, "time", SimpleNamespace(monotonic=lambda: now))
    options = ApplyOptions(pipeline="p", spool_uri="file:///s", lake_uri="file:///l")
    applier: Any = Applier(options, MemoryStore(uuid.uuid4().hex), cast("Any", None), stop=threading.Event())
    begin(manifest, OTHER)
    applier._ledger, applier._lease = ledger_of(manifest), SimpleNamespace(check=lambda: None)
    applier._boundaries = SimpleNamespace(publish=write, is_reached=lambda: True)
    applier._reports = SimpleNamespace(log=lambda *_, **__: None, expire=lambda: None, complete=None)
    applier._upkeep, applier._refused = SimpleNamespace(report=None), lambda: ""
    applier._left = {}
    for step in (applier._report, applier._state_boundary):
        written.clear()
        while len(written) < 2 and now < 10_000:
            applier._changed = True
            step()
            now += 1
        first, second = written
        assert second - (first + 120) <= LONGEST_APART_SECONDS + 1
