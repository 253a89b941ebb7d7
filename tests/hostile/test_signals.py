"""SIGTERM at any moment of a start, and a stop while ingest is suspended."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_a_signal_at_any_moment_of_the_start_ends_with_a_documented_code(database: Database, tmp_path: Path) -> None:
    orders(database)
    codes = []
    for pause in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.5, 6.0):
        with Pipe(database, tmp_path).start() as pipe:
            assert pipe.process is not None
            time.sleep(pause)
            began = time.monotonic()
            os.kill(pipe.process.pid, signal.SIGTERM)
            try:
                codes.append((pause, pipe.process.wait(40), round(time.monotonic() - began, 1)))
            except subprocess.TimeoutExpired:
                codes.append((pause, None, 40.0))
        print(codes[-1], flush=True)
    assert {code for _, code, _ in codes} <= {0, 75}, "docs/exit-codes.md: SIGTERM drains and ends with 0, or with 75"


def test_a_second_signal_leaves_at_once(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        assert pipe.process is not None
        os.kill(pipe.process.pid, signal.SIGTERM)
        time.sleep(0.05)
        os.kill(pipe.process.pid, signal.SIGTERM)
        code = pipe.process.wait(40)
        print("twice", code)
        assert code in (0, 143, -15)


def test_check_and_status_agree_on_a_stale_table(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(state="stale", reason="r")
        status, checked = pipe("status"), pipe("check")
        killed = pipe.process
        assert killed is not None
        print(status.returncode, status.stdout[-400:], checked.returncode, checked.stdout[:300], checked.stderr)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        time.sleep(1)
        after = pipe("status", "--json")
        print("after kill -9", after.returncode)
        assert (status.returncode, after.returncode) == (9, 10)
        assert checked.returncode != 0, "a critical problem, and `check` says: ready, nothing critical"
