"""A table is maintained or gets a window, never both, and what is known of its maintenance outlives a restart."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.applied import AppliedLog, Maintenance, MaintenanceRun
from sluice.manifest.reader import load_state
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.progress.intake import Intake
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import restore
from tests.spark.changes import Change, Manifest
from tests.spark.model import SCHEMA
from tests.unit.applier.ledgers import begin, ledger_of

ID = SCHEMA.table_id
RUN = MaintenanceRun("2026-01-01T00:00:00.000+00:00", 1.5, 20, 1000, 1, 900)
RECORD = Maintenance(3, 2, "2026-01-01T00:00:00.000+00:00", runs={"join": RUN}, failing={"vacuum": "no"})


def _ledger(manifest: Manifest, **options: Any) -> tuple[Ledger, Intake]:
    """A table with its snapshot, and one change that is not read yet."""
    seq = begin(manifest, SCHEMA)
    ledger = ledger_of(manifest, ExaminedVersion(1, seq), **options)
    intake = Intake(manifest.store, ledger, poll_seconds=0.0)
    intake.read(now=0.0)
    manifest.transaction([Change("i", {"id": 1})], SCHEMA)
    return ledger, intake


def test_a_table_in_maintenance_gets_no_window_and_the_applier_may_still_be_idle(manifest: Manifest) -> None:
    ledger, intake = _ledger(manifest)
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


def test_what_was_there_at_the_start_waits_for_ever_and_a_table_that_fails_does_not_count(manifest: Manifest) -> None:
    before, _ = _ledger(manifest)
    ledger = ledger_of(manifest, ExaminedVersion(1, before.tables[ID].committed_seq))
    Intake(manifest.store, ledger, poll_seconds=0.0).read(now=10.0)
    assert ledger.waiting(now=20.0) == {ID: float("inf")}
    ledger.tables[ID].failed("no", now=10.0, at=0.0, passing=False)
    assert ledger.waiting(now=20.0) == {}
    assert ledger.maintainable() == []


def test_the_record_of_maintenance_outlives_a_restart_and_a_new_generation(manifest: Manifest) -> None:
    ledger, intake = _ledger(manifest)
    ledger.tables[ID].maintenance = RECORD
    log = AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", ledger.report())
    state = load_state(manifest.store).tables[ID]
    assert restore(state, AppliedLog.decode(log.encode()), place=ExaminedVersion(1, 1)).maintenance == RECORD
    manifest.table(SCHEMA, generation=2, new=False)
    intake.read(now=10.0)
    assert ledger.tables[ID].pending.generation == 2
    assert ledger.tables[ID].maintenance == RECORD


@pytest.mark.parametrize(
    "off", [{"maintenance_share": 0.0}, {"tables": {SCHEMA.qualified_name: {"maintenance": False}}}]
)
def test_a_failure_is_no_problem_any_more_when_nobody_tries_again(manifest: Manifest, off: dict[str, Any]) -> None:
    ledger, _ = _ledger(manifest, **off)
    ledger.tables[ID].maintenance = RECORD
    assert ledger.report()[ID].maintenance == replace(RECORD, failing={})
