"""What scrapes of a pipeline said in the course of an incident, and the file that keeps it.

Invariants: a recording has only metrics that a rule reads; times of day are kept as ages, so that
they can be played at any time; a process that was not scraped has no value at that step.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from deploy.monitoring.alerts import ALERTS, DEFAULTS, RECORDINGS
from deploy.monitoring.rules import plain
from sluice.telemetry import catalogue as known

FOLDER = Path(__file__).parents[2] / "golden" / "incidents"
STEP_SECONDS = 15.0
CLOCK = "_timestamp_seconds"
PROBLEMS, ERRORS = f"{known.PROBLEMS.name}{{", f"{known.ERRORS.name}{{"
_ABSENT = "_"


def samples(exposition: str) -> dict[str, float]:
    """The series of one scrape, labels and all."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if math.isfinite(sample.value):
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def read_by_rules() -> frozenset[str]:
    """The metrics that alerts and recordings read."""
    expressions = [plain(one.expression, DEFAULTS) for one in ALERTS]
    expressions += [plain(one.expression, DEFAULTS) for one in RECORDINGS]
    return frozenset(name for text in expressions for name in re.findall(r"(?<![\w:])sluice_\w+", text))


@dataclass
class Phase:
    """Values by series, one for each step, None where the series was not there."""

    steps: int = 0
    series: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, expositions: Mapping[str, str], *, at: float, metrics: Iterable[str]) -> None:
        """One step: what each process said, by its name."""
        wanted = frozenset(metrics)
        for process, exposition in expositions.items():
            for name, value in samples(exposition).items():
                metric = name.partition("{")[0]
                if metric in wanted:
                    labelled = name.replace("{", f'{{instance="{process}:1",', 1)
                    kept = at - value if metric.endswith(CLOCK) else value
                    self.series.setdefault(labelled, [None] * self.steps).append(round(kept, 3))
        self.steps += 1
        for values in self.series.values():
            values.extend([None] * (self.steps - len(values)))


def write(path: Path, phases: Mapping[str, Phase]) -> None:
    """Without errors and problems that never came: each is known from the start, and no rule asks for the absence of
    one.
    """
    came = {series for phase in phases.values() for series, values in phase.series.items() if any(values)}
    lines = []
    for name, phase in phases.items():
        lines.append(f"# {name} {phase.steps}")
        for series, values in sorted(phase.series.items()):
            never = (series.startswith(PROBLEMS) and series not in came) or (
                series.startswith(ERRORS) and not any(values)
            )
            if not never:
                lines.append(f"{series}\t{' '.join(_runs(values))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def read(path: Path) -> dict[str, Phase]:
    phases: dict[str, Phase] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            _, name, steps = line.split()
            phase = phases[name] = Phase(int(steps))
        else:
            series, _, values = line.partition("\t")
            phase.series[series] = [value for run in values.split() for value in _unrolled(run)]
    return phases


def _runs(values: Iterable[float | None]) -> Iterable[str]:
    for value, run in groupby(values):
        count = len(list(run))
        text = _ABSENT if value is None else f"{value:.15g}"
        yield text if count == 1 else f"{text}*{count}"


def _unrolled(run: str) -> list[float | None]:
    text, _, count = run.partition("*")
    return [None if text == _ABSENT else float(text)] * int(count or 1)
