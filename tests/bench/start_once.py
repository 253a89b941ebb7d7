"""One start of the applier in a process of its own: prints one JSON line with the seconds from a
running JVM to the first window that is committed.
"""

import json
import logging
import sys
import threading
import time
from pathlib import Path

import structlog

from sluice.store.opening import open_store
from sluice_spark import session
from sluice_spark.applier import Applier
from sluice_spark.telemetry import ApplyTelemetry
from tests.bench.contest import cpu_seconds_of
from tests.bench.starting import NAME, options

GIVE_UP_SECONDS = 900.0


def main() -> None:
    folder = Path(sys.argv[1])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    chosen = options(folder)
    began = time.monotonic()
    spark = session.start(chosen)
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr, unused-ignore]
    up, cpu = time.monotonic(), _cpu_seconds(java)
    stop, telemetry = threading.Event(), ApplyTelemetry(chosen)
    store = open_store(chosen.spool_uri, prefix=f"{NAME}/", options={})
    ended: list[BaseException] = []

    def run() -> None:
        try:
            Applier(chosen, store, spark, stop=stop, telemetry=telemetry).run()
        except BaseException as error:  # noqa: BLE001 - passed on below
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not telemetry.succeeded_at and not ended and time.monotonic() < up + GIVE_UP_SECONDS:
        time.sleep(0.02)
    first = time.monotonic()
    spent = _cpu_seconds(java) - cpu
    stop.set()
    thread.join()
    spark.stop()
    if ended or not telemetry.succeeded_at:
        raise RuntimeError(f"the applier ended without a window: {ended}")
    print(json.dumps({"jvm_s": up - began, "first_s": first - up, "cpu_s": spent, "jvm_cpu_s": cpu}))


def _cpu_seconds(java: int) -> float:
    """Of this process and its JVM."""
    return cpu_seconds_of("self") + cpu_seconds_of(java)


if __name__ == "__main__":
    main()
