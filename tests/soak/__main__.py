"""`python -m tests.soak`: a pipeline lives through a week in minutes. See docs/soak.md.

SOAK_MINUTES (40) is how long it is under load, SOAK_RATE (4200) how many transactions of one row come in a second
beside the others, SOAK_SAMPLE (10) the seconds between two samples, SEED the workload.
Lines of JSON go to build/soak/samples.jsonl. It ends with 1 when a table differs, or when something grows.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from tests.soak import growth, sampling
from tests.soak.busy_client import BusyClient
from tests.soak.story import Story
from tests.soak.world import World, world

RECORD = Path("build/soak/samples.jsonl")
WARM_SHARE = 0.2
"""Of the run, which is not judged: until archives, pruning and Java's compiler have found their pace."""
COUNT_EVERY = 6
"""Samples: the data files of each table are counted by reading its log."""


class Record:
    """Appends lines, from any thread."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.phase = "warm"

    def __call__(self, what: str, **fields: Any) -> None:
        with self._lock:
            at = round(time.monotonic() - self._began, 1)
            self._file.write(sampling.line(what=what, at=at, phase=self.phase, **fields))
            self._file.flush()


def main() -> int:
    minutes, every = float(os.environ.get("SOAK_MINUTES", "40")), float(os.environ.get("SOAK_SAMPLE", "10"))
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    print(f"SEED={seed}, {minutes:g} minutes", flush=True)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sluice-soak-"))
    with RECORD.open("w", encoding="utf-8") as file, world(folder, seed=seed) as pipeline:
        busy = BusyClient(pipeline.database, rate=float(os.environ.get("SOAK_RATE", "4200")))
        _live(pipeline, busy, Record(file), seconds=minutes * 60, every=every, seed=seed)
    grown = growth.grown(growth.series(growth.read(RECORD.read_text(encoding="utf-8"))))
    print("\n".join(["all tables are equal", *(f"grows: {one}" for one in grown)]), flush=True)
    if not grown:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if grown else 0


def _live(pipeline: World, busy: BusyClient, record: Record, *, seconds: float, every: float, seed: int) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    record("begin", commit=commit.stdout.strip(), seed=seed, minutes=seconds / 60, cpus=os.cpu_count())
    for name in ("ingest", "applier"):
        record("start", process=name, seconds=round(pipeline.start(name), 2))
    end = time.monotonic() + seconds
    shares = {"warm_seconds": seconds * WARM_SHARE, "judged_seconds": seconds * (1 - WARM_SHARE)}
    with pipeline.load(seed), busy, Story(pipeline, **shares, note=record) as story:
        number = 0
        while (left := end - time.monotonic()) > 0:
            record.phase = story.phase
            record("sample", **_sample(pipeline, counted=number % COUNT_EVERY == 0))
            story.check()
            number += 1
            time.sleep(min(every, left))
        record.phase = "end"
    pipeline.database.end_prepared()
    for name in ("ingest", "applier"):
        if name not in pipeline.running:
            pipeline.start(name)
    tables = pipeline.assert_equal()
    whole = pipeline.pipeline.run("spool", "verify", "--content", timeout=600)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    transactions = {"transactions": pipeline.workload.committed(), "of_one_row": busy.committed()}
    record("end", tables=len(tables), entries=_entries(pipeline), **transactions)


def _sample(pipeline: World, *, counted: bool) -> dict[str, Any]:
    own, pids = pipeline.pipeline.own_spool, {name: process.pid for name, process in dict(pipeline.running).items()}
    return {
        "processes": sampling.processes(pids),
        "ages": {name: round(time.monotonic() - began) for name, began in dict(pipeline.started).items()},
        "spool": sampling.spool(own),
        "checkpoint_bytes": sampling.newest_checkpoint_bytes(own),
        "lake": sampling.lake(pipeline.pipeline.directory / "lake", counted=counted),
    }


def _entries(pipeline: World) -> int:
    return max(int(path.stem) for path in (pipeline.pipeline.own_spool / "manifest").glob("*.json"))


if __name__ == "__main__":
    sys.exit(main())
