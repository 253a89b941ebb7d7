"""No row value and no secret appears outside the applier: not in its log, not in Spark's, not in
the reason of a table that stopped.
"""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.errors import ApplyError, TablesStopped, UnsupportedChange
from sluice_spark.lake.failures import Cause, CommitConflict, translated_errors, verdict
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA
from tests.spark.processes import SMALL_JVM, run_applier

VALUE = 86_753_091
SECRET = "correct horse battery"


def _row(key: int, v: int) -> dict[str, object]:
    return {"id": key, "v": v, "big": f"text{VALUE}", "at": None}


def test_a_row_that_delta_refuses_and_quotes_stays_out_of_lines_and_reasons(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([_row(1, 0)], SCHEMA)
    pipeline.apply()
    pipeline.spark.sql(f"ALTER TABLE delta.`{pipeline.path()}` ADD CONSTRAINT small CHECK (v < 5)")
    pipeline.manifest.transaction([Change("u", _row(1, VALUE))], SCHEMA)
    small: dict[str, Any] = {
        **SMALL_JVM,
        "spark_conf": {**SMALL_JVM["spark_conf"], "spark.hadoop.fs.s3a.secret.key": SECRET},
    }
    run = run_applier(pipeline.options(**small, log_format="json", lake_options={"aws_secret_access_key": SECRET}))
    table = AppliedLog.decode(pipeline.store.get(list(pipeline.store.list(keys.APPLY_LOG))[-1])).tables["16385"]
    assert (run.code, table.state) == (TablesStopped.exit_code, "stale"), run.output
    assert table.reason == "Delta refused the change (DELTA_VIOLATE_CONSTRAINT_WITH_VALUES, SQLSTATE 23001)"
    assert "1 of 1 tables are not equal to the source: public.items is stale" in run.output
    assert str(VALUE) not in run.output + table.reason
    assert SECRET not in run.output
    ours = [line for line in run.output.splitlines() if line.startswith("{")]
    assert {"time", "level", "event"} <= set.intersection(*(set(json.loads(line)) for line in ours))
    assert any("java" in command for command in run.commands)
    assert not [command for command in run.commands if SECRET in command]


def test_conditions_of_real_failures(spark: SparkSession) -> None:
    for statement, kind, text in [
        (f"SELECT CAST('{VALUE}x' AS INT)", UnsupportedChange, r"CAST_INVALID_INPUT, SQLSTATE 22018"),
        (f"SELECT CAST({VALUE}{VALUE} AS INT)", UnsupportedChange, r"CAST_OVERFLOW, SQLSTATE 22003"),
        (f"SELECT x{VALUE}", UnsupportedChange, r"UNRESOLVED_COLUMN.*SQLSTATE 42703"),
        (f"SELECT * FROM parquet.`/nowhere/{VALUE}`", ApplyError, r"PATH_NOT_FOUND, SQLSTATE 42K03"),
    ]:
        with pytest.raises(kind, match=text) as raised, translated_errors():
            spark.sql(statement).collect()
        assert str(VALUE) not in str(raised.value)


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        ([Cause("SparkException"), Cause("SparkArithmeticException", "CAST_OVERFLOW", "22003")], UnsupportedChange),
        (
            [
                Cause("SparkException", "TASK_WRITE_FAILED", "58030"),
                Cause("SparkRuntimeException", "DIVIDE_BY_ZERO", "22012"),
            ],
            UnsupportedChange,
        ),
        (
            [
                Cause(
                    "DeltaUnsupportedOperationException",
                    "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",
                    "21506",
                )
            ],
            UnsupportedChange,
        ),
        ([Cause("SparkRuntimeException", "USER_RAISED_EXCEPTION", "P0001", ours=True)], UnsupportedChange),
        ([Cause("SparkException")], ApplyError),
        ([Cause("OutOfMemoryError", passing=True)], ApplyError),
        ([Cause("AnalysisException", "UNRESOLVED_COLUMN", "42703"), Cause("IOException", passing=True)], ApplyError),
        ([Cause("DeltaConcurrentAppendException", "DELTA_CONCURRENT_APPEND", "2D521")], CommitConflict),
        ([Cause("DeltaFileNotFoundException", "DELTA_FILE_NOT_FOUND", "42K03")], ApplyError),
        ([Cause("SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "53200")], ApplyError),
        ([Cause("DeltaIllegalStateException", "DELTA_STATE_RECOVER_ERROR", "XXKDS")], ApplyError),
        ([Cause("IllegalArgumentException")], ApplyError),
    ],
)
def test_only_what_would_happen_again_is_permanent(causes: list[Cause], kind: type[Exception]) -> None:
    assert type(verdict(causes)) is kind
