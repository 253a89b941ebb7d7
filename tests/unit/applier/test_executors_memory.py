"""What an executor may hold, by what Spark's settings say about it."""

import pytest

from sluice_spark.distributed.distribution import tasks_at_once
from sluice_spark.distributed.packages import difference


@pytest.mark.parametrize(
    ("master", "cores", "expected"),
    [
        ("local[8]", "", 8),
        ("local[8]", "2", 8),
        ("spark://host:7077", "", 8),
        ("spark://host:7077", "2", 2),
        ("yarn", "", 1),
        ("k8s://https://host", "3", 3),
    ],
)
def test_tasks_of_one_executor_share_its_memory(master: str, cores: str, expected: int) -> None:
    assert tasks_at_once(master, cores=cores, parallelism=8) == expected


def test_packages_that_are_missing_or_of_another_version_are_named() -> None:
    ours = {"Sluice": "a1", "numpy": "2.1", "pyarrow": "20"}
    assert difference(ours, ours) == ""
    assert difference({"Sluice": "a1", "numpy": "2.0"}, ours) == (
        "numpy 2.0 instead of 2.1, pyarrow missing instead of 20"
    )
