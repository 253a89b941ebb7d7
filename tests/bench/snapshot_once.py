"""One snapshot by ingest in a process of its own: prints one JSON line with what it cost.

Seconds run from the moment the round of snapshots begins, before the exported snapshot is there, to the
entry that makes the table live.
"""

import asyncio
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path

import structlog

from sluice.contract.entries import Snapshot
from sluice.ingest.options import IngestOptions
from sluice.ingest.snapshot.chunk_round import SnapshotLimits
from sluice.ingest.supervisor import Ingest
from sluice.manifest.reader import read_entries
from sluice.source.sessions import SourceOptions
from sluice.store.opening import open_store
from tests.bench.ingest_once import peak_rss_mb


def main() -> None:
    dsn, slot, spool, connections = sys.argv[1:]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = IngestOptions(
        pipeline="bench",
        source=SourceOptions(dsn=dsn, slot=slot, publication="bench", application_name=slot),
        snapshot=SnapshotLimits(connections=int(connections)),
        instance="bench",
    )
    store = open_store(Path(spool).as_uri(), prefix="bench/", options={})
    ingest = Ingest(options, store)
    asyncio.run(ingest.run(until_caught_up=True))
    began = ingest.status.snapshots.progress.began_at
    ended = max(
        datetime.fromisoformat(entry.written_at).timestamp()
        for entry, _ in read_entries(store, after_seq=0)
        if isinstance(entry.body, Snapshot) and entry.body.final
    )
    print(json.dumps({"seconds": ended - began, "cpu_s": time.process_time(), "peak_rss_mb": peak_rss_mb()}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
