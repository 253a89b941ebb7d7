"""`python -m tests.soak.page build/soak/samples.jsonl`: writes figures and plots of a long run into docs/soak.md."""

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.soak import growth
from tests.soak.growth import Series
from tests.support.pages import write_between

PAGE = Path(__file__).parents[2] / "docs" / "soak.md"
BEGIN, END = "<!-- results: written by python -m tests.soak.page -->", "<!-- end of results -->"
PROCESSES = ("the applier (JVM)", "the applier (Python)", "ingest")
PLOTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Resident memory: the JVM, the applier's Python, ingest",
        "MiB",
        tuple(f"resident memory of {process}, MiB" for process in PROCESSES),
    ),
    (
        "Open files: the JVM, the applier's Python, ingest",
        "files",
        tuple(f"open files of {process}" for process in PROCESSES),
    ),
    (
        "Objects of the spool: manifest, data, archives",
        "objects",
        tuple(f"objects of the spool below {folder}/" for folder in ("manifest", "data", "archive")),
    ),
    ("Log of the lake table with the longest one", "objects", ("objects in lake logs, most of a table",)),
    ("Data files of all lake tables in use", "files", ("data files of all lake tables in use",)),
    ("Newest checkpoint of the manifest", "KiB", ("newest checkpoint, KiB",)),
    ("Start until ready: the applier", "s", ("start of the applier, s",)),
    ("Start until ready: ingest", "s", ("start of ingest, s",)),
)
"""Title, unit, and the series from the highest to the lowest."""
_COLUMNS = 30


def main(arguments: Sequence[str]) -> int:
    lines = growth.read(Path(arguments[0]).read_text(encoding="utf-8"))
    write_between(PAGE, BEGIN, END, f"\n\n{rendered(lines)}\n")
    return 0


def rendered(lines: Sequence[dict[str, Any]]) -> str:
    everything = {one.name: one for one in growth.series(lines, warm=True)}
    plots = [
        _plot(title, unit, [everything[name] for name in names if name in everything]) for title, unit, names in PLOTS
    ]
    return "\n\n".join([_said(lines), _table(growth.series(lines)), *plots])


def _said(lines: Iterable[dict[str, Any]]) -> str:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["what"], []).append(line)
    (begin,), (end,) = by_kind["begin"], by_kind["end"]
    restarts = Counter(f"{line['process']} ({line['how']})" for line in by_kind.get("restart", []))
    times = ", ".join(f"{count} of {what}" for what, count in sorted(restarts.items()))
    load = f"{begin['minutes']:g} minutes under load on {begin['cpus']} cores, with SEED={begin['seed']}"
    one_row = f"{end['of_one_row']:,} transactions of one row"
    written = f"{one_row}, {end['transactions']:,} short ones, beside them large and prepared ones"
    said = (
        f"commit {begin['commit']}: {load}",
        f"{written}; {end['entries']:,} entries of the manifest",
        f"{len(by_kind.get('shape', []))} changes of shape; {restarts.total()} restarts: {times}",
        f"in the end {end['tables']} tables, all equal; `sluice spool verify --content` found the spool whole",
    )
    return "\n".join(f"* {one}" for one in said)


def _table(found: Iterable[Series]) -> str:
    rows = [("what", "samples", "first half", "second half", "allowed")]
    for one in found:
        verdict = one.verdict
        if verdict is None:
            rows.append((one.name, str(len(one.points)), "", "", "too few to judge"))
        else:
            grows = " **grows**" if verdict.grows else ""
            figures = (f"{verdict.first:,.1f}", f"{verdict.second:,.1f}", f"{verdict.most:,.1f}{grows}")
            rows.append((one.name, str(len(one.points)), *figures))
    rows.insert(1, ("---",) * 5)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _plot(title: str, unit: str, found: Sequence[Series]) -> str:
    if not found or min(len(one.points) for one in found) < 2:
        return f"{title}: too few values to plot."
    first, last = found[0].points[0][0], found[0].points[-1][0]
    count = min(_COLUMNS, *(len(one.points) for one in found), _COLUMNS)
    drawn = [_medians(one, first, last, count) for one in found]
    highest = max(max(values) for values in drawn)
    return "\n".join(
        [
            "```mermaid",
            "xychart-beta",
            f'  title "{title}"',
            f'  x-axis "minutes" {first / 60:.1f} --> {last / 60:.1f}',
            f'  y-axis "{unit}" 0 --> {highest * 1.1:.4g}',
            *(f"  line [{', '.join(f'{value:.4g}' for value in values)}]" for values in drawn),
            "```",
        ]
    )


def _medians(one: Series, first: float, last: float, count: int) -> list[float]:
    """Of each of `count` equal spans of time; one without a value has that of the span before."""
    spans: list[list[float]] = [[] for _ in range(count)]
    for at, value in one.points:
        spans[max(0, min(count - 1, int((at - first) / max(last - first, 1.0) * count)))].append(value)
    found = [statistics.median(values) if values else None for values in spans]
    known = next(value for value in found if value is not None)
    return [known := value if value is not None else known for value in found]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
