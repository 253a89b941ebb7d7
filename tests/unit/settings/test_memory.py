"""The memory of an applier follows from its settings."""

import pytest

from sluice.settings.memory import ApplierMemory, applier_memory
from sluice.settings.model import ApplySettings

GIBI = 1024**3


def _memory(**given: object) -> ApplierMemory:
    return applier_memory(ApplySettings.model_validate(given))


def test_the_limit_of_the_container_covers_the_jvm_and_every_ceiling_of_python() -> None:
    memory = _memory()
    assert memory.container >= memory.jvm + memory.python
    assert memory.container - GIBI < memory.jvm + memory.python
    assert memory.jvm > memory.heap == 2 * GIBI


MORE = {"driver_memory": "4GiB", "workers": 3, "max_memory": "512MiB", "max_window": "256MiB", "key_cache": "512MiB"}


@pytest.mark.parametrize("name", MORE)
def test_every_setting_that_takes_memory_raises_the_sum(name: str) -> None:
    before, after = _memory(), _memory(**{name: MORE[name]})
    assert after.jvm + after.python > before.jvm + before.python
