"""Tables that cannot continue, however many they are, stop neither the reading of the manifest nor
what is said of the others.
"""

import threading
import uuid
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from sluice.contract.entries import Changes, Commits, Segment
from sluice.contract.schema import TableSchema
from sluice.manifest.reader import load_state, read_entries
from sluice.store.memory import MemoryStore
from sluice_spark.applied_window import Applied
from sluice_spark.applier import RESTING_SECONDS, Applier
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.boundary import Boundary
from sluice_spark.progress.intake import MAX_BACKLOG, Intake
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import restore
from tests.spark.changes import Manifest
from tests.spark.model import SCHEMA

OTHER = replace(SCHEMA, table_id="16386", table_name="others")


def _segment(table_id: str, lsn: int) -> Segment:
    return Segment(f"data/{table_id}/{lsn}", table_id, 1, 1, 10, "", lsn, lsn, {"i": 1})


def _changes(manifest: Manifest, ids: list[str]) -> int:
    end = manifest.lsn + 10
    return manifest.append(
        Changes(tuple(_segment(item, end) for item in ids), Commits([end], [end], [7])), through_lsn=end
    )


def _apply_all(ledger: Ledger, *, now: float) -> None:
    for work in list(ledger.ready(now=now, boundary_seq=0)):
        ledger.applied(work, Applied(ExaminedVersion(1, work.window.last_seq), work.window.last_seq))


def _names(count: int) -> list[TableSchema]:
    return [replace(SCHEMA, table_id=str(30_000 + number), table_name=f"t{number}") for number in range(count)]


def test_a_long_snapshot_does_not_stop_the_reading_for_ever() -> None:
    """Ten snapshots are taken while thousands of entries with changes of those tables arrive;
    another table is live. Then the snapshots are whole.
    """
    store = MemoryStore("long snapshot", prefix="shop/")
    manifest = Manifest(store)
    manifest.table(OTHER)
    manifest.snapshot([], OTHER)
    waiting = _names(10)
    for schema in waiting:
        manifest.table(schema)
    for _ in range(3 * MAX_BACKLOG // 20):
        _changes(manifest, [schema.table_id for schema in waiting])
    _changes(manifest, ["16386"])
    for schema in waiting:
        manifest.snapshot([], schema)
    _changes(manifest, [waiting[0].table_id])
    state = load_state(store)
    ledger = Ledger(ApplyOptions("shop", "memory://s", "memory://l"), state)
    ledger.begin(
        {
            table_id: restore(table, None, place=ExaminedVersion(0, 3) if table_id == "16386" else ExaminedVersion())
            for table_id, table in state.tables.items()
        }
    )
    intake = Intake(store, ledger, poll_seconds=0.0)
    rounds = 0
    while ledger.read_seq < manifest.seq and rounds < 200:
        rounds += 1
        intake.read(now=0.0)
        _apply_all(ledger, now=0.0)
    assert ledger.read_seq == manifest.seq


def test_forty_quarantined_tables_do_not_stop_the_others() -> None:
    store = MemoryStore("forty", prefix="shop/")
    manifest = Manifest(store)
    manifest.table(OTHER)
    manifest.snapshot([], OTHER)
    bad = _names(40)
    for schema in bad:
        manifest.table(schema)
        manifest.snapshot([], schema)
    for _ in range(1200):
        _changes(manifest, [schema.table_id for schema in bad])
    _changes(manifest, ["16386"])
    state = load_state(store)
    ledger = Ledger(ApplyOptions("shop", "memory://s", "memory://l"), state)
    ledger.begin(
        {
            table_id: restore(table, None, place=ExaminedVersion(0, table.generation_seq))
            for table_id, table in state.tables.items()
        }
    )
    for schema in bad:
        known = ledger.tables[schema.table_id]
        for _ in range(5):
            known.failed("the bucket says no", now=0.0, at=0.0, passing=False)
        known.not_before = 1e9
        assert known.quarantined
    intake = Intake(store, ledger, poll_seconds=0.0)
    for _ in range(50):
        intake.read(now=1.0)
        _apply_all(ledger, now=1.0)
    assert ledger.read_seq == manifest.seq


def test_a_boundary_says_one_thing_of_a_name_that_two_tables_had() -> None:
    """Dropped and created again: the old table id is detached for ever, the new one is live in the
    same lake folder.
    """
    store = MemoryStore("names", prefix="shop/")
    manifest = Manifest(store)
    manifest.table(SCHEMA)
    manifest.snapshot([], SCHEMA)
    manifest.table(SCHEMA, state="detached", reason="dropped at the source", new=False)
    again = replace(SCHEMA, table_id="20000")
    begun = manifest.table(again)
    manifest.snapshot([], again)
    state = load_state(store)
    ledger = Ledger(ApplyOptions("shop", "memory://s", "memory://l"), state)
    places = {"16385": ExaminedVersion(5, 2), "20000": ExaminedVersion(6, begun)}
    ledger.begin({table_id: restore(table, None, place=places[table_id]) for table_id, table in state.tables.items()})
    for entry, sha256 in read_entries(store, after_seq=ledger.read_seq):
        ledger.take_in(entry, sha256)
    boundary = Boundary(ledger.read_seq, ledger.read_lsn)
    since = {table_id: known.pending.snapshot_lsn for table_id, known in ledger.tables.items()}
    boundary.pass_by(ledger.report(), since_lsn=since)
    complete = boundary.complete(ledger.report(), since_lsn=since)
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
