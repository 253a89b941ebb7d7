"""`python -m tests.bench [IDS]`: runs benchmarks, prints tables, and keeps the figures in
build/bench.json (seconds throughout).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench import (
    applying,
    assembly,
    backlog,
    catalog,
    fleet,
    freshness,
    idle,
    kinds,
    long_log,
    long_run,
    memory,
    plain,
    reading,
    replication,
    shards,
    snapshots,
    starting,
    verifying,
)
from tests.bench.contest import console
from tests.bench.peers import copies, streams

ROUNDS = 3
BENCHMARKS: dict[str, Callable[[int], dict[str, float | None]]] = {
    "P1": replication.p1,
    "P2": replication.p2,
    "P3": memory.p3,
    "P4": snapshots.p4,
    "P4B": snapshots.p4b,
    "P5": applying.p5,
    "P6": applying.p6,
    "P7": applying.p7,
    "P8": freshness.p8,
    "P9": replication.p9,
    "P10": starting.p10,
    "P11": long_run.p11,
    "P12": assembly.p12,
    "P13": verifying.p13,
    "P14": catalog.p14,
    "P15": long_log.p15,
    "P16": backlog.p16,
    "P17": freshness.p17,
    "P18": idle.p18,
    "P19": kinds.p19,
    "P19W": kinds.p19w,
    "P20": reading.p20,
    "P21": fleet.p21,
    "P22": freshness.p22,
    "P23": idle.p23,
    "P24": plain.p24,
    "P25": shards.p25,
    "PEERS1": streams.peers1,
    "PEERS4": copies.peers4,
}
RESULTS = Path("build/bench.json")


def main() -> int:
    wanted = [name.upper() for argument in sys.argv[1:] for name in argument.replace(",", " ").split()] or list(
        BENCHMARKS
    )
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        console.print(f"no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
        return 2
    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in wanted:
        console.rule(f"{name}: {(BENCHMARKS[name].__doc__ or '').splitlines()[0]}")
        results[name] = BENCHMARKS[name](ROUNDS)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
