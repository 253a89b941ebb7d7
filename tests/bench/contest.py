"""Rounds, medians and tables: contestants take turns in one run, because these figures only mean
something beside each other.
"""

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    table = Table(title=title)
    for heading in ("contestant", "min s", "median s", "cpu s", "peak RSS MB"):
        table.add_column(heading, justify="left" if heading == "contestant" else "right")
    for one in contestants:
        table.add_row(
            one.name,
            f"{one.min_s:.2f}",
            f"{one.median_s:.2f}",
            f"{one.median('cpu_s'):.1f}",
            f"{one.median('peak_rss_mb'):.0f}",
        )
    console.print(table)


def timed_process(command: Sequence[str], *, timeout_s: float = 600) -> Outcome:
    """Wall time of a whole process, and what the operating system charged it for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, timeout=timeout_s, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(seconds, cpu, 0.0)
