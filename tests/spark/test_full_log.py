"""A log that cannot be written ends no applier."""

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, row
from tests.spark.processes import SMALL_JVM


def test_the_applier_goes_on_while_the_disk_of_its_log_is_full(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1), row(2))
    environment = {**os.environ, "SLUICE_APPLY_OPTIONS": pipeline.options(**SMALL_JVM).to_json()}
    command = [sys.executable, "-m", "sluice_spark"]
    with Path("/dev/full").open("ab") as full:
        assert subprocess.run(command, env=environment, stderr=full, timeout=300, check=False).returncode == 0
    assert pipeline.keys() == [1, 2]
