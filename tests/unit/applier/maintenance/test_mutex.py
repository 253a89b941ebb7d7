"""A table is maintained or gets a window, never both, and what is known of its maintenance outlives a restart."""

from dataclasses import replace

from sluice.contract.applied import AppliedLog, Maintenance, MaintenanceRun
from sluice.manifest.reader import load_state
from sluice.store.memory import MemoryStore
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.intake import Intake
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import restore
from tests.spark.changes import Change, Manifest
from tests.spark.model import SCHEMA

ID = SCHEMA.table_id
RUN = MaintenanceRun("2026-01-01T00:00:00.000+00:00", 1.5, 20, 1000, 1, 900)
RECORD = Maintenance(3, 2, "2026-01-01T00:00:00.000+00:00", runs={"join": RUN}, failing={"vacuum": "no"})


def _ledger(store: MemoryStore, **options: object) -> tuple[Ledger, Manifest, Intake]:
    """A table with its snapshot, and one change that is not read yet."""
    manifest = Manifest(store)
    manifest.table(SCHEMA)
    seq = manifest.snapshot([], SCHEMA)
    ledger = Ledger(ApplyOptions("shop", "memory://s", "memory://l", **options), load_state(store))  # type: ignore[arg-type]
    ledger.begin({ID: restore(ledger.state.tables[ID], None, place=ExaminedVersion(1, seq))})
    intake = Intake(store, ledger, poll_seconds=0.0)
    intake.read(now=0.0)
    manifest.transaction([Change("i", {"id": 1})], SCHEMA)
    return ledger, manifest, intake


def test_a_table_in_maintenance_gets_no_window_and_the_applier_may_still_be_idle() -> None:
    store = MemoryStore("mutex", prefix="shop/")
    ledger, _, intake = _ledger(store)
    path = ledger.state.tables[ID].path
    assert ledger.maintainable() == [ID]
    ledger.maintain(path)
    assert ledger.idle()
    assert ledger.maintainable() == []
    intake.read(now=10.0)
    assert not ledger.idle()
    assert not list(ledger.ready(now=20.0, boundary_seq=0))
    assert ledger.waiting(now=20.0) == {ID: 10.0}
    ledger.maintained(path)
    (work,) = ledger.ready(now=20.0, boundary_seq=0)
    ledger.begun(work, now=20.0)
    assert ledger.maintainable() == []


def test_what_was_there_at_the_start_waits_for_ever_and_a_table_that_fails_does_not_count() -> None:
    store = MemoryStore("waiting", prefix="shop/")
    ledger, _, intake = _ledger(store)
    intake.read(now=10.0)
    other = Ledger(ApplyOptions("shop", "memory://s", "memory://l"), load_state(store))
    other.begin({ID: restore(other.state.tables[ID], None, place=ExaminedVersion(1, ledger.tables[ID].committed_seq))})
    Intake(store, other, poll_seconds=0.0).read(now=10.0)
    assert other.waiting(now=20.0) == {ID: float("inf")}
    other.tables[ID].failed("no", now=10.0, at=0.0, passing=False)
    assert other.waiting(now=20.0) == {}
    assert other.maintainable() == []


def test_the_record_of_maintenance_outlives_a_restart_and_a_new_generation() -> None:
    store = MemoryStore("record", prefix="shop/")
    ledger, manifest, intake = _ledger(store)
    ledger.tables[ID].maintenance = RECORD
    log = AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", ledger.report())
    state = load_state(store).tables[ID]
    assert restore(state, AppliedLog.decode(log.encode()), place=ExaminedVersion(1, 1)).maintenance == RECORD
    manifest.table(SCHEMA, generation=2, new=False)
    intake.read(now=10.0)
    assert ledger.tables[ID].pending.generation == 2
    assert ledger.tables[ID].maintenance == RECORD


def test_a_failure_is_no_problem_any_more_when_nobody_tries_again() -> None:
    off: list[dict[str, object]] = [
        {"maintenance_share": 0.0},
        {"tables": {SCHEMA.qualified_name: {"maintenance": False}}},
    ]
    for number, options in enumerate(off):
        ledger, *_ = _ledger(MemoryStore(f"failing {number}", prefix="shop/"), **options)
        ledger.tables[ID].maintenance = RECORD
        assert ledger.report()[ID].maintenance == replace(RECORD, failing={})
