"""No table is stated complete through a position behind a change that only the catalog shows."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline
from tests.support.pipeline import wait_until
from tests.support.quiet_changes import QuietChanges, Signal
from tests.support.sources import Database

MOMENTS = ("running", "frozen", "down")
SIGNALS: tuple[Signal, ...] = ("", "beside", "alone")
CASES = {f"{moment}, {way or 'no signal'}": (moment, way) for moment in MOMENTS for way in SIGNALS}


@pytest.mark.parametrize("case", cases(CASES, quick=["down, no signal", "frozen, alone"]))
def test_nothing_is_complete_beyond_a_change_that_no_look_has_found(
    database: Database, tmp_path: Path, case: str
) -> None:
    moment, ddl_signal = CASES[case]
    quiet = QuietChanges(database, tmp_path, signal=ddl_signal)
    process = quiet.pipeline.start("run")
    try:
        wait_until(quiet.is_settled, what="all tables are live", processes=(process,), timeout=60)
        wait_until(lambda: quiet.relies_on_signal(process), what="the signal is relied upon", processes=(process,))
        if moment == "down":
            process.stop()
        elif moment == "frozen":
            os.kill(process.pid, signal.SIGSTOP)
        with quiet.noise():
            quiet.change_all()
            if moment == "down":
                process = quiet.pipeline.start("run")
            elif moment == "frozen":
                os.kill(process.pid, signal.SIGCONT)
            wait_until(quiet.is_settled, what="every change was found", processes=(process,), timeout=60)
    finally:
        process.stop()
    assert all(kind.known(quiet.newest().tables[quiet.ids[kind.table]]) for kind in quiet.kinds)


@slow
def test_an_idle_pipeline_writes_no_entry_for_a_look(database: Database, tmp_path: Path) -> None:
    quiet = QuietChanges(database, tmp_path)
    with quiet.pipeline.start("run") as process:
        wait_until(quiet.is_settled, what="all tables are live", processes=(process,), timeout=60)
        wait_until(lambda: quiet.newest().examined_lsn == quiet.newest().through_lsn, what="all is examined")
        database.execute("INSERT INTO noise VALUES (1)")
        before = quiet.newest().seq
        wait_until(
            lambda: quiet.newest().seq > before and quiet.newest().examined_lsn == quiet.newest().through_lsn,
            what="the row is examined",
            processes=(process,),
        )
        assert quiet.newest().seq <= before + 3


def test_looks_at_any_rhythm_examine_what_was_published(database: Database, pipeline: IngestPipeline) -> None:
    """A look that begins too soon after the last one examines nothing, and must not put the next one off."""
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run("INSERT INTO a VALUES (1)", watch_interval_s=0.05)
    state = pipeline.entries()[-1]
    assert state.examined_lsn == state.through_lsn
