"""The object store accepts connections and answers nothing for three minutes, with every default as it is: nobody
restarts anything, and nothing is lost. `make soak` plays it; tests/chaos/test_store_away.py has the seconds of it that
count for the stream.
"""

import json
import os
import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ops.local_stack import alive, local_stack
from tests.support.answers import is_well

STALL_SECONDS = 180.0
ALERT = "SluiceLagHigh"


@pytest.mark.skipif(
    os.environ.get("SLUICE_TEST_SOAK") != "1", reason="three real minutes with all processes are for `make soak`"
)
@pytest.mark.timeout(1800)
def test_the_whole_local_stack_outlives_the_stall_and_the_lake_follows(tmp_path: Path) -> None:
    with local_stack(tmp_path / "stack") as stack:
        assert stack("up").returncode == 0
        stack.assert_the_lake_follows()
        before, fired = stack.pids(), set()
        with ThreadPoolExecutor(1) as people:
            working = people.submit(stack, "load", LOAD_SECONDS=str(STALL_SECONDS + 10), timeout=STALL_SECONDS + 60)
            os.kill(before["s3"], signal.SIGSTOP)
            try:
                with stack.connect() as connection:
                    walsender = connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
                    end = time.monotonic() + STALL_SECONDS
                    while time.monotonic() < end:
                        for variable in ("METRICS_PORT", "APPLY_METRICS_PORT"):
                            assert is_well(stack.url(variable, "/livez")), variable
                        assert connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone() == walsender
                        fired |= _firing(stack.url("PROMETHEUS_PORT", "/api/v1/alerts"))
                        time.sleep(1)
            finally:
                os.kill(before["s3"], signal.SIGCONT)
            assert working.result().returncode == 0
        print(f"fired: {sorted(fired)}")
        assert ALERT in fired
        stack.assert_the_lake_follows(timeout=300)
        assert stack.pids() == before
        assert all(alive(pid) for pid in before.values()), {name for name, pid in before.items() if not alive(pid)}


def _firing(url: str) -> set[str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
