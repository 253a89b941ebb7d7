"""The event loop of ingest stands still: every surface of the process must say so, and a signal must still end it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def stalled(database: Database, tmp_path: Path) -> Pipe:
    orders(database)
    pipe = Pipe(database, tmp_path).start(program=(str(Path(__file__).with_name("stalled.py")),), STALL=str(tmp_path / "stall"))
    pipe.streaming().live()
    pipe.applied()
    pipe.wait(lambda: 'sluice_health{pipeline="shop",state="healthy"} 1.0' in pipe.health())
    (tmp_path / "stall").touch()
    return pipe


def test_the_metrics_agree_with_livez_and_status_while_the_event_loop_stands_still(database: Database, tmp_path: Path) -> None:
    with stalled(database, tmp_path) as pipe:
        time.sleep(50)
        pipe.applied(2)
        time.sleep(20)
        seen = pipe.looks()
        print(seen)
        assert seen["/livez"][0] == 503
        assert "healthy" not in str(seen["metrics"]), seen


def test_a_signal_ends_a_process_whose_event_loop_stands_still(database: Database, tmp_path: Path) -> None:
    with stalled(database, tmp_path) as pipe:
        time.sleep(2)
        assert pipe.process is not None
        began = time.monotonic()
        os.kill(pipe.process.pid, signal.SIGTERM)
        time.sleep(25)
        os.kill(pipe.process.pid, signal.SIGTERM)
        try:
            code = pipe.process.wait(10)
        except subprocess.TimeoutExpired:
            code = None
        print("ended with", code, "after", time.monotonic() - began)
        assert code is not None, "35 s and two signals later it runs"
