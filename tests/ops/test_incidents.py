"""Incidents of a real pipeline, as they were recorded: the expected pages, and no others.

Each recording is played after hours in which all was well, and goes on for hours as it was at its
end: alerts that look back far see what they would see.
"""

from pathlib import Path

import pytest

from sluice.telemetry import catalogue as known
from tests.ops.incidents.recording import FOLDER, read, read_by_rules
from tests.ops.incidents.timeline import Timeline, assert_notified
from tests.support.extent import slow

ROOT = Path(__file__).parents[2]
CALM, LONG_CALM = 75, 390
"""Minutes in which all was well before: more than the hour, and than the six, over which freshness is
judged.
"""
FALLING_BEHIND = (
    known.LAG_SECONDS.name,
    known.LAG_BYTES.name,
    known.APPLY_FRESHNESS.name,
    known.PENDING_BYTES.name,
    known.SLOT_SAFE.name,
    known.SLOT_SECONDS_LEFT.name,
)

pytestmark = pytest.mark.usefixtures("promtool")


def _incident(
    name: str, *, growing: tuple[str, ...] = FALLING_BEHIND, minutes: int = 120, calm: int = CALM
) -> Timeline:
    phases = read(FOLDER / f"{name}.txt")
    line = Timeline().held(phases["before"], minutes=calm, first=True).played(phases["before"])
    line.played(phases["incident"]).held(phases["incident"], minutes=minutes, growing=growing)
    if "second" in phases:
        line.played(phases["second"]).held(phases["second"], minutes=minutes, growing=growing)
    return line.played(phases["after"]).held(phases["after"], minutes=30)


def test_recordings_have_every_metric_that_a_rule_reads_and_a_pipeline_exports() -> None:
    recorded = {
        series.partition("{")[0]
        for path in FOLDER.glob("*.txt")
        for one in read(path).values()
        for series in one.series
    }
    unusual = {
        known.TABLE_PROBLEM.name,
        known.APPLY_RESTARTS.name,
        known.FLEET_RESTARTS.name,
        known.ERRORS.name,
        known.SNAPSHOT_START.name,
    }
    assert read_by_rules() - recorded <= unusual


@slow
def test_a_dead_applier_is_one_page(tmp_path: Path) -> None:
    assert_notified(tmp_path, _incident("dead_applier", calm=LONG_CALM), pages=["SluiceApplierDown"], tickets=[])


def test_a_dead_ingest_is_one_page(tmp_path: Path) -> None:
    assert_notified(tmp_path, _incident("dead_ingest"), pages=["SluiceIngestDown"], tickets=[])


@slow
def test_a_dead_ingest_is_still_the_same_page_seven_hours_later(tmp_path: Path) -> None:
    assert_notified(tmp_path, _incident("dead_ingest", minutes=420), pages=["SluiceIngestDown"], tickets=[])


@slow
def test_a_store_that_is_away_is_one_page_and_a_ticket_before_it(tmp_path: Path) -> None:
    assert_notified(tmp_path, _incident("store_away"), pages=["SluiceLagCritical"], tickets=["SluiceLagHigh"])


@slow
def test_a_slot_that_fills_within_minutes_is_one_page(tmp_path: Path) -> None:
    assert_notified(tmp_path, _incident("slot_filling"), pages=["SluiceSlotEndangered"], tickets=[])


def test_a_stale_table_is_a_page_and_a_second_one_is_another(tmp_path: Path) -> None:
    assert_notified(
        tmp_path,
        _incident("stale_tables", growing=()),
        pages=["SluiceTableUnequal orders", "SluiceTableUnequal customers"],
        tickets=[],
    )


@pytest.mark.parametrize("parts", [("ingest", "applier"), pytest.param(("applier",), marks=slow)])
def test_a_planned_stop_is_no_page(parts: tuple[str, ...], tmp_path: Path) -> None:
    recorded = read(FOLDER / ("dead_ingest.txt" if "ingest" in parts else "dead_applier.txt"))
    line = Timeline().held(recorded["before"], minutes=CALM, first=True)
    if "ingest" in parts:
        line.silence(minutes=180)
    else:
        line.played(recorded["incident"]).held(recorded["incident"], minutes=180, growing=FALLING_BEHIND)
    stopped = line.minutes - CALM
    line.played(recorded["after"]).held(recorded["after"], minutes=90)
    for part in parts:
        line.stands(f'pipeline:sluice_paused{{pipeline="shop",part="{part}"}}', since_minute=CALM - 1, minutes=stopped)
    assert_notified(tmp_path, line, pages=[], tickets=[])


def test_a_fresh_install_is_no_page(tmp_path: Path) -> None:
    phases = read(FOLDER / "fresh_install.txt")
    line = Timeline().silence(minutes=5).played(phases["incident"]).played(phases["after"])
    line.held(phases["after"], minutes=120)
    line.stands('pipeline:sluice_declared{pipeline="shop"}', since_minute=3, minutes=line.minutes - 3)
    assert_notified(tmp_path, line, pages=[], tickets=[])


def test_an_installation_that_never_comes_up_is_one_page(tmp_path: Path) -> None:
    line = Timeline().silence(minutes=180)
    line.stands('pipeline:sluice_declared{pipeline="shop"}', since_minute=3, minutes=177)
    assert_notified(tmp_path, line, pages=["SluiceIngestDown"], tickets=[])
