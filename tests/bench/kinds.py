"""P19: what the kinds of lake tables cost, each fed by the same windows of one source table."""

import statistics
import time

from rich.table import Table as Printed

from sluice_spark.lake.commit_way import DIRECT
from tests.bench.applying import WARM_UPS, Bench, bench_of, random_changes
from tests.bench.assembly import cpu_seconds
from tests.bench.contest import console

ROWS = 1_000_000
TARGETS = {
    "mirror": {"kind": "mirror"},
    "soft": {"kind": "mirror", "deletes": "soft"},
    "history": {"kind": "history"},
    "changelog": {"kind": "changelog"},
}
LIVING = {"mirror": "true", "soft": "_sluice_deleted_at IS NULL", "history": "_sluice_is_current"}


def p19(rounds: int) -> dict[str, float | None]:
    """CPU of windows of 1,000 random-key changes in 1,000,000 rows: a mirror alone, and beside it a history and a
    changelog of the same table.
    """
    options = {name: {"way": DIRECT, "tables": {"public.t": {"targets": [target]}}} for name, target in TARGETS.items()}
    cpu: dict[str, list[float]] = {name: [] for name in TARGETS}
    wall: dict[str, list[float]] = {name: [] for name in TARGETS}
    with bench_of(ROWS, options, living=LIVING) as bench:
        for number in range(rounds + WARM_UPS):
            random_changes(bench, number + 1, rows=ROWS)
            bench.ingest()
            taken: dict[str, float] = {}
            used: dict[str, float] = {}
            window = bench.next_window()
            for name in TARGETS:
                began = _used(bench)
                taken[name] = bench.applied(name, window)
                used[name] = _used(bench) - began
            console.print(f"P19: CPU {', '.join(f'{name} {seconds:.2f} s' for name, seconds in used.items())}")
            if number >= WARM_UPS:
                for name in TARGETS:
                    cpu[name].append(used[name])
                    wall[name].append(taken[name])
        bench.verify()
    table = Printed(title="P19: seconds of a window of 1,000 changes, by kind")
    for heading in ("kind", "CPU median", "wall median"):
        table.add_column(heading)
    for name in TARGETS:
        table.add_row(name, f"{statistics.median(cpu[name]):.2f}", f"{statistics.median(wall[name]):.2f}")
    console.print(table)
    alone = statistics.median(cpu["mirror"])
    together = sum(statistics.median(cpu[name]) for name in ("mirror", "history", "changelog"))
    return {
        "mirror_cpu_s": alone,
        "soft_cpu_s": statistics.median(cpu["soft"]),
        "history_cpu_s": statistics.median(cpu["history"]),
        "changelog_cpu_s": statistics.median(cpu["changelog"]),
        "three_to_one": together / alone,
    }


def _used(bench: Bench) -> float:
    return cpu_seconds(bench.session) + time.thread_time()
