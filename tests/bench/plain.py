"""P24: what a lake table costs that readers without column mapping and deletion vectors can read."""

import os
import statistics

from sluice.contract.lake_layout import MAPPING, VECTORS, WITHOUT
from tests.bench.applying import WARM_UPS, bench_of, random_changes
from tests.bench.contest import console, show_table

ROWS = int(os.environ.get("P24_ROWS", "1000000"))
LAKES = {"both": (), "no column mapping": (MAPPING,), "no vectors": (VECTORS,), "neither": (MAPPING, VECTORS)}


def p24(rounds: int) -> dict[str, float | None]:
    """Windows of 1,000 random-key changes in P24_ROWS=1,000,000 rows: of a lake table as it is made otherwise, and of
    those without column mapping, without deletion vectors and without both.
    """
    options = {name: {"tables": {"public.t": {"targets": [_target(without)]}}} for name, without in LAKES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in LAKES}
    with bench_of(ROWS, options, living=dict.fromkeys(LAKES, "true")) as bench:
        for number in range(rounds + WARM_UPS):
            random_changes(bench, number + 1, rows=ROWS)
            bench.ingest()
            taken = bench.apply()
            console.print(f"P24: {', '.join(f'{name} {one:.2f} s' for name, one in taken.items())}")
            if number >= WARM_UPS:
                for name in LAKES:
                    seconds[name].append(taken[name])
        bench.verify()
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    title = f"P24: seconds of a window of 1,000 changes in {ROWS:,} rows"
    show_table(title, ("lake table with", "median"), [(name, f"{found:.2f}") for name, found in medians.items()])
    plain = medians["both"]
    return {
        "ours_s": plain,
        "unmapped_ratio": medians["no column mapping"] / plain,
        "without_vectors_ratio": medians["no vectors"] / plain,
        "neither_ratio": medians["neither"] / plain,
    }


def _target(without: tuple[str, ...]) -> dict[str, object]:
    return {"kind": "mirror", "layout": {"properties": [(name, WITHOUT[name]) for name in without]}}
