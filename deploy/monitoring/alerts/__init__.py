"""The alerts that Sluice ships, by what they watch.

Invariants: `critical` is a page, `warning` is not, and there are at most 20 in all. An idle pipeline,
one whose server sets no limit on retained WAL, one that is starting and one that is paused do not
alert; a pipeline of which nothing is heard does. A quantity that is absent never counts as good:
its absence has an alert of its own.
"""

from deploy.monitoring.alerts import lake, objectives, presence, process, slot, stream
from deploy.monitoring.model import Alert, Recording, Threshold

ALERTS: tuple[Alert, ...] = (*process.ALERTS, *slot.ALERTS, *stream.ALERTS, *lake.ALERTS, *objectives.ALERTS)
RECORDINGS: tuple[Recording, ...] = (*presence.RECORDINGS, *objectives.RECORDINGS)
THRESHOLDS: tuple[Threshold, ...] = (
    *process.THRESHOLDS,
    *slot.THRESHOLDS,
    *stream.THRESHOLDS,
    *lake.THRESHOLDS,
    *objectives.THRESHOLDS,
)
DEFAULTS: dict[str, int | float] = {threshold.name: threshold.default for threshold in THRESHOLDS}
