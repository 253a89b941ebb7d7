"""The memory of an applier follows from its settings, and the chart asks for that much."""

from pathlib import Path

import yaml

from sluice.settings.memory import ApplierMemory, applier_memory
from sluice.settings.model import ApplySettings

MEBI, GIBI = 1024**2, 1024**3


def _memory(**given: object) -> ApplierMemory:
    return applier_memory(ApplySettings.model_validate(given))


def test_the_limit_of_the_container_covers_the_jvm_and_every_ceiling_of_python() -> None:
    memory = _memory()
    assert memory.container >= memory.jvm + memory.python
    assert memory.container - GIBI < memory.jvm + memory.python
    assert memory.jvm > memory.heap == 2 * GIBI


def test_every_setting_that_takes_memory_raises_the_sum() -> None:
    sums = {
        name: (memory := _memory(**{name: value})).jvm + memory.python
        for name, value in {
            "driver_memory": "4GiB",
            "workers": 3,
            "max_memory": "512MiB",
            "max_window": "256MiB",
            "key_cache": "512MiB",
        }.items()
    }
    before = _memory().jvm + _memory().python
    assert {name: value > before for name, value in sums.items()} == dict.fromkeys(sums, True)


def test_the_chart_asks_for_what_the_defaults_need() -> None:
    values = yaml.safe_load(Path("helm/sluice/values.yaml").read_text(encoding="utf-8"))
    needed = f"{_memory().container // GIBI}Gi"
    resources = values["applier"]["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (needed, needed)
    outside = _memory().container - _memory().heap
    assert values["applier"]["sparkApplication"]["driver"]["memoryOverhead"] == f"{outside // GIBI}g"
