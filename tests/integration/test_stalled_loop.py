"""The event loop of ingest stands still: every surface of the process must say so, and a signal
must still end it.
"""

import os
import signal
from pathlib import Path

from sluice.errors import Interrupted
from tests.support.extent import slow
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders

PROGRAM = Path(__file__).parents[1] / "support" / "stalled.py"


def stalled(database: Database, folder: Path, *, stop: str) -> Pipe:
    """A pipeline that was healthy a moment ago."""
    orders(database)
    pipe = Pipe(database, folder).start(program=(str(PROGRAM),), STALL=str(folder / "stall"), SLUICE_STOP_TIMEOUT=stop)
    pipe.streaming().live()
    pipe.applied()
    pipe.wait(lambda: 'sluice_health{pipeline="shop",state="healthy"} 1.0' in pipe.health(), 120)
    (folder / "stall").touch()
    pipe.wait(lambda: (folder / "stalled").exists())
    return pipe


def test_a_process_whose_event_loop_never_goes_round_is_not_alive(database: Database, tmp_path: Path) -> None:
    orders(database)
    (tmp_path / "stall").touch()
    with Pipe(database, tmp_path).start(program=(str(PROGRAM),), STALL=str(tmp_path / "stall")) as pipe:
        pipe.wait(lambda: (tmp_path / "stalled").exists())
        pipe.wait(lambda: pipe.get("/livez")[0] == 503, 30)


@slow
def test_the_metrics_agree_with_livez_while_the_event_loop_stands_still(database: Database, tmp_path: Path) -> None:
    with stalled(database, tmp_path, stop="20s") as pipe:
        pipe.wait(lambda: pipe.get("/livez")[0] == 503, 120)
        pipe.wait(lambda: "healthy" not in str(pipe.health()), 30)
        assert 'sluice_problems{code="ingest.stuck",pipeline="shop"} 1.0' in pipe.health()
        assert "ingest.stuck" in pipe.get("/status")[1]


@slow
def test_the_time_of_a_stop_holds_while_the_event_loop_stands_still(database: Database, tmp_path: Path) -> None:
    with stalled(database, tmp_path, stop="3s") as pipe:
        assert pipe.process is not None
        os.kill(pipe.process.pid, signal.SIGTERM)
        assert pipe.process.wait(90) == Interrupted.exit_code


@slow
def test_a_second_signal_ends_a_process_whose_event_loop_stands_still(database: Database, tmp_path: Path) -> None:
    with stalled(database, tmp_path, stop="1h") as pipe:
        assert pipe.process is not None
        os.kill(pipe.process.pid, signal.SIGTERM)
        pipe.wait(lambda: any("stopping" in event["event"] for event in pipe.events()))
        os.kill(pipe.process.pid, signal.SIGTERM)
        assert pipe.process.wait(90) == 128 + signal.SIGTERM
