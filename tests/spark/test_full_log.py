"""A log that cannot be written ends neither an applier nor a comparison."""

import os
import subprocess
import sys
from pathlib import Path

from sluice.cli.wiring import lake_reader_command
from sluice.contract.row_form import LakeQuestion
from sluice.process.lake_reader import LakeReaderProcess
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


def test_the_process_that_reads_the_lake_answers_while_the_disk_of_its_log_is_full(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    environment = {**os.environ, "SLUICE_APPLY_OPTIONS": pipeline.options(**SMALL_JVM).to_json()}
    command = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh", *lake_reader_command()]
    process = LakeReaderProcess(command, environment=environment)
    try:
        process.send(LakeQuestion("7", 1, 1, 0, 0, 6, False, 0.0, (1, 2)))
        assert process.receive(240).refused == "the server computes other hashes than this machine"
    finally:
        process.end(at_once=True)
