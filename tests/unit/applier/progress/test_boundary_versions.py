"""What `apply/complete/` names can be read for as long as VACUUM takes it for stated lately."""

import uuid

import pytest

from sluice.contract import keys
from sluice.contract.applied import Complete
from sluice.store.memory import MemoryStore
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.progress.reports import Reports
from tests.support.offers import offers
from tests.unit.applier.progress.test_boundary import Lake

HOUR = 3600.0


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
        self.reports = Reports(lake.store, instance="test", offers=offers(MemoryStore(uuid.uuid4().hex, prefix="")))
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
    lake = Lake()
    clock = Clock(monkeypatch, lake)
    clock.turn()
    assert clock.newest().versions["public.t0"] == 0
    table_id = lake.schemas[0].table_id
    progress = lake.ledger.tables[table_id]
    lake.ledger.stands_at(table_id, progress, ExaminedVersion(1, progress.place.marker, seen=True))
    for _ in range(4 * 180):
        lake.now += 20.0
        clock.turn()
    assert not clock.reports.completed_within(HOUR / 2) or clock.newest().versions["public.t0"] == 1


def test_a_boundary_that_a_slow_table_reached_late_is_as_old_as_the_versions_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one table works off its backlog for three hours, the others went on."""
    lake = Lake()
    clock = Clock(monkeypatch, lake)
    clock.turn()

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
    clock.turn()
    end_all_but(slow)
    clock.turn()
    for _ in range(18):
        lake.manifest.unstored(lake.schemas[0])
        lake.read()
        lake.now += HOUR / 6
        begin_windows()
        end_all_but(slow)
        clock.turn()
    lake.end(0)
    clock.turn()
    named = clock.newest().versions["public.t0"]
    stands = lake.ledger.tables[lake.schemas[0].table_id].place.version
    assert (named, stands) == (1, 19)
    assert not clock.reports.completed_within(HOUR / 2), "version 1 was replaced almost three hours ago"
