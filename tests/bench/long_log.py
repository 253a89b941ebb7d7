"""P15: what a start and a look cost when the manifest is long: on a local disk and on S3.

The log is written as the writer and the compaction leave it, without asking them to write every entry
in turn: archives, an `opened`, the newest entries and ten checkpoints. That it is one is proved by
reading its end and its middle back, every link checked.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.contract import archive, keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.archive import Sealing
from sluice.contract.entries import Body, Changes, Commits
from sluice.contract.table_state import State
from sluice.health.reporter import Reporter
from sluice.manifest import checkpoint, compaction
from sluice.manifest.compaction import Compactor
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.state import to_json
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.bench.contest import console, show_table
from tests.support.manifests import follow, opened, segment, table
from tools.local.s3 import running_s3

ENTRIES = int(os.environ.get("BENCH_P15_ENTRIES", "1000000"))
TRANSACTIONS = int(os.environ.get("BENCH_P15_TRANSACTIONS", "10"))
"""In one entry. A start and a look read a few entries, whatever they hold."""
STORES = os.environ.get("BENCH_P15_STORES", "local s3").split()
START_SECONDS, POLL_SECONDS = 5.0, 0.020
LOOKS = 50


class Counting:
    """A store that counts what it is asked for."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.requests += name != "describe"
            return method(*arguments, **named)

        return counted


def p15(rounds: int) -> dict[str, float | None]:
    """A manifest of 1,000,000 entries (BENCH_P15_ENTRIES): start and poll, on local disk and S3."""
    with tempfile.TemporaryDirectory() as folder:
        local = open_store(Path(folder, "spool").as_uri(), prefix="bench/", options={})
        began = time.monotonic()
        state = write_log(local, ENTRIES + 150)  # a start reads what follows the newest checkpoint
        console.print(f"P15: {ENTRIES:,} entries written in {time.monotonic() - began:.0f} s")
        results = measured("local", local, state, rounds=rounds) if "local" in STORES else {}
        if "s3" in STORES:
            with running_s3(buckets=("bench",)) as server:
                remote = open_store("s3://bench/spool", prefix="bench/", options=server.options())
                for key in local.list(""):
                    remote.put(key, local.get(key))
                results |= measured("s3", remote, state, rounds=rounds)
    return results


def write_log(store: ObjectStore, count: int) -> PipelineState:
    """The state after the last of `count` entries, all of which are in `store`."""
    kept_from = compaction.foldable(count)
    state, sealing = PipelineState(), None
    for body, through_lsn in bodies(count):
        if state.seq % archive.ENTRIES == 0 and state.seq < kept_from:
            sealing = Sealing(first_seq=state.seq + 1, previous_sha256=state.previous_sha256, state=to_json(state))
        state, entry = follow(state, body, through_lsn=through_lsn)
        stored = entry.encode()
        if state.seq == 1 or state.seq > kept_from:
            store.create(keys.manifest_entry(state.seq), stored)
        if sealing is not None and state.seq <= kept_from:
            sealing.add(stored, state.previous_sha256)
            if state.seq % archive.ENTRIES == 0:
                store.create(keys.archive(state.seq), sealing.sealed())
        if state.seq % checkpoint.EVERY_ENTRIES == 0 and state.seq > count - 10 * checkpoint.EVERY_ENTRIES:
            checkpoint.write(store, state)
    row = AppliedTable("7", "public", "t7", "p", "mirror", 1, State.LIVE, through_seq=state.seq)
    store.create(keys.apply_log(1), AppliedLog(1, "bench", "2030-01-01T00:00:00+00:00", {"7": row}).encode())
    return state


def bodies(count: int) -> Iterator[tuple[Body, int]]:
    yield opened(), 10
    yield table(state=State.LIVE), 10
    for number in range(count - 2):
        first = 11 + number * TRANSACTIONS * 100
        lsns = list(range(first, first + TRANSACTIONS * 100, 100))
        times = [1_700_000_000_000_000 + lsn * 100 for lsn in lsns]
        commits = Commits(lsns, times, list(range(number, number + TRANSACTIONS)))
        yield Changes((segment(first_lsn=lsns[0], last_lsn=lsns[-1]),), commits), lsns[-1]


def measured(name: str, store: ObjectStore, state: PipelineState, *, rounds: int) -> dict[str, float | None]:
    counting: Any = Counting(store)
    figures: dict[str, tuple[float, int]] = {}

    def take(what: str, work: Any, *, times: int) -> Any:
        spent, asked = [], 0
        for _ in range(times):
            counting.requests, began = 0, time.monotonic()
            found = work()
            spent.append(time.monotonic() - began)
            asked = counting.requests
        figures[what] = (statistics.median(spent), asked)
        return found

    started = take("start", lambda: load_state(counting), times=rounds)
    if started != state:
        raise RuntimeError("P15: a start does not come to the state that was written")
    poll: Any = {"after_seq": state.seq, "previous_sha256": state.previous_sha256}
    if take("poll", lambda: list(read_entries(counting, gaps=False, **poll)), times=LOOKS):
        raise RuntimeError("P15: there are entries behind the last one")
    take("poll with a listing", lambda: list(read_entries(counting, **poll)), times=LOOKS)
    reporter = Reporter(pipeline="bench", store=counting, lake_uri="file:///lake", source=None)
    reporter.take()
    take("status, each next look", reporter.take, times=rounds)
    take("compaction, first look of a process", lambda: Compactor(counting).step(state.seq), times=rounds)
    middle = state.seq // 2
    read = take(
        "1,000 entries from the middle",
        lambda: sum(1 for _ in read_entries(counting, after_seq=middle, limit=1000)),
        times=rounds,
    )
    if read != min(1000, state.seq - middle):
        raise RuntimeError("P15: entries of the middle are missing")
    rows = ((what, f"{seconds:.4f}", str(asked)) for what, (seconds, asked) in figures.items())
    show_table(f"P15, {ENTRIES:,} entries, {name}", ("what", "seconds", "requests"), rows)
    for what, limit in (("start", START_SECONDS), ("poll", POLL_SECONDS)):
        console.print(f"P15 {name}: {what} {figures[what][0]:.4f} s, at most {limit:g} s")
    return {f"{name} {what}": seconds for what, (seconds, _) in figures.items()}
