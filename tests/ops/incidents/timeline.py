"""Recorded phases put together to hours of simulated time, in promtool's notation.

What is held keeps the last recorded value, times of day that kept up with the clock keep up with it,
and what is named goes on growing at its last rate. (Prometheus: Unit testing for rules.)
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.alerts.inhibitions import INHIBITIONS
from deploy.monitoring.files import PLAIN_RULES
from tests.ops.incidents.recording import CLOCK, STEP_SECONDS, Phase
from tests.support import commands
from tools.local.tools import tool

ROOT = Path(__file__).parents[3]
_STEPS_A_MINUTE = int(60 / STEP_SECONDS)
_RATE_STEPS = 4
"""Over how many steps a rate is taken."""


@dataclass
class Timeline:
    steps: int = 0
    _parts: dict[str, list[str]] = field(default_factory=dict)
    _until: dict[str, int] = field(default_factory=dict)

    @property
    def minutes(self) -> int:
        return self.steps // _STEPS_A_MINUTE

    def played(self, phase: Phase) -> "Timeline":
        for series, values in phase.series.items():
            for step, value in enumerate(values):
                if value is not None:
                    self._add(series, self.steps + step, f"{_at(series, value, self.steps + step):.15g}", 1)
        self.steps += phase.steps
        return self

    def held(self, phase: Phase, *, minutes: int, first: bool = False, growing: Collection[str] = ()) -> "Timeline":
        """For `minutes` as it was at the end of `phase`, or at its beginning."""
        count = minutes * _STEPS_A_MINUTE
        for series, values in phase.series.items():
            value = values[0 if first else -1]
            if value is not None:
                rate = (
                    0.0 if first else _rate(values, clock=_is_clock(series), grows=series.partition("{")[0] in growing)
                )
                self._hold(series, value, rate, count)
        self.steps += count
        return self

    def silence(self, *, minutes: int) -> "Timeline":
        self.steps += minutes * _STEPS_A_MINUTE
        return self

    def stands(self, series: str, *, since_minute: int, minutes: int) -> "Timeline":
        """A series of ones that no process exports."""
        self._add(
            series, since_minute * _STEPS_A_MINUTE, f"1x{minutes * _STEPS_A_MINUTE - 1}", minutes * _STEPS_A_MINUTE
        )
        return self

    def _hold(self, series: str, value: float, rate: float, count: int) -> None:
        start = _at(series, value, self.steps)
        slope = STEP_SECONDS - rate if _is_clock(series) else rate
        if slope < 0 and start + slope * count < 0:
            down = int(start / -slope)
            self._add(
                series, self.steps, f"{start:.15g}{slope:+.15g}x{max(down - 1, 0)} 0x{count - max(down, 1) - 1}", count
            )
        else:
            self._add(series, self.steps, f"{start:.15g}{slope:+.15g}x{count - 1}", count)

    def _add(self, series: str, step: int, text: str, count: int) -> None:
        before = self._until.get(series, 0)
        parts = self._parts.setdefault(series, [])
        if step > before:
            # A target that is gone ends its series at once.
            parts.append(
                f"_x{step}" if not before else "stale" if step == before + 1 else f"stale _x{step - before - 1}"
            )
        parts.append(text)
        self._until[series] = step + count

    def input_series(self) -> list[dict[str, str]]:
        ended = {series: " stale" if until < self.steps else "" for series, until in self._until.items()}
        return [{"series": series, "values": " ".join(parts) + ended[series]} for series, parts in self._parts.items()]


def _is_clock(series: str) -> bool:
    return series.partition("{")[0].endswith(CLOCK)


def _at(series: str, value: float, step: int) -> float:
    return step * STEP_SECONDS - value if _is_clock(series) else value


def _rate(values: Sequence[float | None], *, clock: bool, grows: bool) -> float:
    """Per step: of an age all or nothing, of what grows as it was, of all else nothing."""
    last, before = values[-1], values[-1 - _RATE_STEPS] if len(values) > _RATE_STEPS else None
    if last is None or before is None:
        return 0.0
    rate = (last - before) / _RATE_STEPS
    if clock:
        return STEP_SECONDS if rate > 0.8 * STEP_SECONDS else 0.0
    return rate if grows else 0.0


def assert_notified(folder: Path, timeline: Timeline, *, pages: Collection[str], tickets: Collection[str]) -> None:
    """Over the whole time exactly these notify somebody. A table is part of the name: `Alert table`."""
    checks = []
    for alert in ALERTS:
        sources = "|".join(one.source for one in INHIBITIONS if alert.name in one.targets)
        firing = f'ALERTS{{alertstate="firing",alertname="{alert.name}"}}'
        if sources:
            firing += f' unless on (pipeline) ALERTS{{alertstate="firing",alertname=~"{sources}"}}'
        wanted = [name for name in (*pages, *tickets) if name.partition(" ")[0] == alert.name]
        assert {name in pages for name in wanted} <= {alert.severity == "critical"}, wanted
        checks.append(
            {
                "expr": f"group by (alertname, table) (max_over_time(({firing})[{timeline.minutes}m:1m]))",
                "eval_time": f"{timeline.minutes}m",
                "exp_samples": [{"labels": _labels(name), "value": 1} for name in wanted],
            }
        )
    case = {"interval": f"{STEP_SECONDS:.0f}s", "input_series": timeline.input_series(), "promql_expr_test": checks}
    path = folder / "incident.yml"
    path.write_text(json.dumps({"rule_files": [str(ROOT / PLAIN_RULES)], "evaluation_interval": "1m", "tests": [case]}))
    outcome = commands.ended(str(tool("promtool")), "test", "rules", str(path), timeout=300)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def _labels(name: str) -> str:
    alert, _, table = name.partition(" ")
    labels: Mapping[str, str] = {"alertname": alert, **({"table": table} if table else {})}
    return "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
