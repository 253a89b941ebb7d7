"""One ingest run in a process of its own: prints one JSON line with what it cost.

Seconds run from the moment START_REPLICATION is sent to the acknowledgement of the target, so
interpreter start-up counts for nobody.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Literal, cast

import structlog

from sluice.ingest.options import IngestOptions
from sluice.ingest.supervisor import Ingest
from sluice.lsn import parse
from sluice.source.sessions import SourceOptions
from sluice.store.opening import open_store


def main() -> None:
    dsn, slot, publication, spool, until, *more = sys.argv[1:]
    streaming, form = [*more, *("auto", "text")[len(more) :]]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = IngestOptions(
        pipeline="bench",
        source=SourceOptions(
            dsn=dsn, slot=slot, publication=publication, application_name=slot, binary=form == "binary"
        ),
        streaming=cast("Literal['off', 'on', 'parallel', 'auto']", streaming),
        instance="bench",
    )
    ingest = Ingest(options, open_store(Path(spool).as_uri(), prefix="bench/", options={}))
    if until == "setup":
        asyncio.run(ingest.run(until_caught_up=True))
        return
    if until.endswith("s"):
        cpu = time.process_time()
        asyncio.run(_for_a_while(ingest, float(until[:-1])))
        print(json.dumps({"seconds": float(until[:-1]), "cpu_s": time.process_time() - cpu}))
        return
    asyncio.run(ingest.run(until_lsn=parse(until)))
    peak = peak_rss_mb()
    seconds = ingest.status.reached_at - ingest.status.streaming_at
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_s": time.process_time(),
                "peak_rss_mb": peak,
                "received_mb": ingest.status.stream.received_bytes / 1e6,
                "reconnects": ingest.status.reconnects,
            }
        )
    )
    sys.stdout.flush()
    os._exit(0)


def peak_rss_mb() -> float:
    """From the kernel's own account of this program: getrusage would carry the parent's peak over."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


async def _for_a_while(ingest: Ingest, seconds: float) -> None:
    running = asyncio.create_task(ingest.run())
    await asyncio.wait({running}, timeout=seconds)
    ingest.stop()
    await running


if __name__ == "__main__":
    main()
