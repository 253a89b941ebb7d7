"""`python -m tests.chaos.report build/chaos/results.jsonl`: writes the table of results in
docs/reliability.md from the lines of a run of chaos.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.support.pages import write_between

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- results: written by python -m tests.chaos.report -->", "<!-- end of results -->"


def main(arguments: Sequence[str]) -> int:
    lines = [
        json.loads(line)
        for name in arguments
        for line in Path(name).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    write_between(PAGE, BEGIN, END, f"\n{rendered(lines)}")
    return 0


def rendered(lines: Iterable[dict[str, Any]]) -> str:
    by_commit: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        by_commit.setdefault((line["commit"], line["major"]), []).append(line)
    counts = ("seeds", "faults", "transactions", "rows", "lost", "doubled", "torn", "live and unequal", "hung")
    heads = ("commit", "PostgreSQL", *counts, "failed seeds")
    rows = [_totals(commit, major, found) for (commit, major), found in by_commit.items()]
    faults: Counter[str] = Counter()
    for found in by_commit.values():
        for line in found:
            faults.update(line["faults"])
    times = [(what, f"{count:,}") for what, count in sorted(faults.items())]
    return f"\n{_table(heads, rows)}\n{_table(('fault', 'times'), times)}\n"


def _totals(commit: str, major: int, found: list[dict[str, Any]]) -> tuple[str, ...]:
    summed = [sum(line[name] for line in found) for name in ("transactions", "rows", "lost", "doubled", "torn")]
    faults = sum(sum(line["faults"].values()) for line in found)
    unequal, hung = sum(len(line["unequal_live"]) for line in found), sum(line["hung"] for line in found)
    failed = [str(line["seed"]) for line in found if line["verdict"] == "failed"]
    return (
        commit,
        str(major),
        *(f"{number:,}" for number in (len(found), faults, *summed, unequal, hung)),
        ", ".join(failed) or "none",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
