"""Rounds, medians and tables: contestants take turns in one run, because these figures only mean
something beside each other.
"""

import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(stderr=True)


@dataclass(frozen=True)
class Outcome:
    """One timed run. `cpu_s` and `peak_rss_mb` are of the contestant's own process."""

    seconds: float
    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0


@dataclass
class Contestant:
    """`run` does one whole round and verifies its work, raising when it is wrong."""

    name: str
    run: Callable[[int], Outcome]
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(outcome.seconds for outcome in self.outcomes)

    @property
    def min_s(self) -> float:
        return min(outcome.seconds for outcome in self.outcomes)

    def median(self, what: str) -> float:
        return float(statistics.median(getattr(outcome, what) for outcome in self.outcomes))


def take_turns(title: str, contestants: Sequence[Contestant], *, rounds: int) -> None:
    """Runs every contestant once a round, in turn, and prints each result as it comes."""
    for number in range(rounds):
        for contestant in contestants:
            outcome = contestant.run(number)
            contestant.outcomes.append(outcome)
            console.print(f"{title} round {number + 1}/{rounds} {contestant.name}: {outcome.seconds:.2f} s")


def show(title: str, contestants: Sequence[Contestant]) -> None:
    rows = (
        (
            one.name,
            f"{one.min_s:.2f}",
            f"{one.median_s:.2f}",
            f"{one.median('cpu_s'):.1f}",
            f"{one.median('peak_rss_mb'):.0f}",
        )
        for one in contestants
    )
    show_table(title, ("contestant", "min s", "median s", "cpu s", "peak RSS MB"), rows)


def show_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def said(*command: str) -> dict[str, Any]:
    """The JSON that a program prints in its last line. Raises RuntimeError when the program fails."""
    done = subprocess.run(command, check=False, timeout=1200, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout else {}


def outcome_of(result: dict[str, Any]) -> Outcome:
    """What a program says that it cost."""
    return Outcome(result["seconds"], result["cpu_s"], result["peak_rss_mb"])


def cpu_seconds_of(pid: int | str) -> float:
    """Of one process, without its children. (proc(5): utime and stime of /proc/pid/stat.)"""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def timed_process(command: Sequence[str]) -> Outcome:
    """Wall time of a whole process, and what the operating system charged it for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(seconds, cpu)
