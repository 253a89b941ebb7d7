"""P19: what lake tables of several kinds cost that one source table feeds: whole pipelines, and single windows."""

import os
import statistics
import time
from collections.abc import Mapping

from sluice_spark.lake.commit_way import DIRECT
from tests.bench.applying import WARM_UPS, Bench, bench_of, random_changes
from tests.bench.assembly import cpu_seconds
from tests.bench.contest import console, show_table
from tests.bench.freshness import Load, percentile, run

ROWS = 1_000_000
TARGETS = {
    "mirror": {"kind": "mirror"},
    "soft": {"kind": "mirror", "deletes": "soft"},
    "history": {"kind": "history"},
    "changelog": {"kind": "changelog"},
}
LIVING = {"mirror": "true", "soft": "_sluice_deleted_at IS NULL", "history": "_sluice_is_current"}


SECONDS = float(os.environ.get("P19_SECONDS", "120"))
MIRROR = {"kind": "mirror"}
OTHERS = ({"kind": "history", "name": "history"}, {"kind": "changelog", "name": "changes"})
CONTESTANTS: dict[str, tuple[Mapping[str, str], ...]] = {
    "mirror": (MIRROR,),
    "mirror, history, changelog": (MIRROR, *OTHERS),
    "the same, others within 30 s": (MIRROR, *({**other, "freshness": "30s"} for other in OTHERS)),
}


def p19(_rounds: int) -> dict[str, float | None]:
    """CPU of ingest and applier for a million changes of a table of 1,000,000 rows, at 500 and 2,000 changes/s for
    P19_SECONDS each: with a mirror alone, and with a history and a changelog beside it.
    """
    headings = ("changes/s", "lake tables", "CPU s", "of the mirror alone", "p50 of the mirror", "p99")
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for rate in (500, 2_000):
        used: list[float] = []
        for name, targets in CONTESTANTS.items():
            outcome = run(Load(1, rate, ROWS, SECONDS, targets=targets))
            used.append(outcome.cores / outcome.changes_per_second * 1e6)
            ages = [percentile(outcome.latencies, share) for share in (0.5, 0.99)]
            cells = (f"{used[-1]:,.0f}", f"{used[-1] / used[0]:.2f}", *(f"{age:.2f}" for age in ages))
            rows.append((f"{outcome.changes_per_second:,.0f}", name, *cells))
        figures |= {f"{rate}_three_to_one": used[1] / used[0], f"{rate}_slower_to_one": used[2] / used[0]}
    show_table(f"P19: CPU seconds for a million changes, {SECONDS:.0f} s of load", headings, rows)
    return figures


def p19w(rounds: int) -> dict[str, float | None]:
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
            console.print(f"P19W: CPU {', '.join(f'{name} {seconds:.2f} s' for name, seconds in used.items())}")
            if number >= WARM_UPS:
                for name in TARGETS:
                    cpu[name].append(used[name])
                    wall[name].append(taken[name])
        bench.verify()
    medians = {name: statistics.median(found) for name, found in cpu.items()}
    rows = [(name, f"{medians[name]:.2f}", f"{statistics.median(wall[name]):.2f}") for name in TARGETS]
    show_table("P19W: seconds of a window of 1,000 changes, by kind", ("kind", "CPU median", "wall median"), rows)
    together = sum(medians[name] for name in ("mirror", "history", "changelog"))
    figures: dict[str, float | None] = {f"{name}_cpu_s": seconds for name, seconds in medians.items()}
    return {**figures, "three_to_one": together / medians["mirror"]}


def _used(bench: Bench) -> float:
    return cpu_seconds(bench.session) + time.thread_time()
