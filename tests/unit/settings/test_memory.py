"""The memory of an applier follows from its settings."""

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
