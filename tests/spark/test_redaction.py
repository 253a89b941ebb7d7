"""No row value and no secret appears outside the applier: not in its log, not in Spark's, not in
the reason of a table that stopped.
"""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.errors import ApplyError, TablesStopped, UnsupportedChange
from sluice_spark.lake.failures import Cause, CommitConflict, translated_errors, verdict
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, row
from tests.spark.processes import SMALL_JVM, run_applier

VALUE = 86_753_091
SECRET = "correct horse battery"


def test_a_row_that_delta_refuses_and_quotes_stays_out_of_lines_and_reasons(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1, big=f"text{VALUE}"))
    pipeline.apply()
    pipeline.sql("ALTER TABLE {t} ADD CONSTRAINT small CHECK (v < 5)")
    pipeline.change(Change("u", row(1, VALUE, f"text{VALUE}")))
    conf = {**SMALL_JVM["spark_conf"], "spark.hadoop.fs.s3a.secret.key": SECRET}
    secret: dict[str, Any] = {"spark_conf": conf, "lake_options": {"aws_secret_access_key": SECRET}}
    run = run_applier(pipeline.options(**{**SMALL_JVM, **secret}, log_format="json"))
    table = pipeline.reported()["16385"]
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


_TWO_FOR_ONE = "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        ([("SparkException",), ("SparkArithmeticException", "CAST_OVERFLOW", "22003")], UnsupportedChange),
        (
            [("SparkException", "TASK_WRITE_FAILED", "58030"), ("SparkRuntimeException", "DIVIDE_BY_ZERO", "22012")],
            UnsupportedChange,
        ),
        ([("DeltaUnsupportedOperationException", _TWO_FOR_ONE, "21506")], UnsupportedChange),
        ([("SparkRuntimeException", "USER_RAISED_EXCEPTION", "P0001", "ours")], UnsupportedChange),
        ([("SparkException",)], ApplyError),
        ([("OutOfMemoryError", "", "", "passing")], ApplyError),
        ([("AnalysisException", "UNRESOLVED_COLUMN", "42703"), ("IOException", "", "", "passing")], ApplyError),
        ([("DeltaConcurrentAppendException", "DELTA_CONCURRENT_APPEND", "2D521")], CommitConflict),
        ([("DeltaFileNotFoundException", "DELTA_FILE_NOT_FOUND", "42K03")], ApplyError),
        ([("SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "53200")], ApplyError),
        ([("DeltaIllegalStateException", "DELTA_STATE_RECOVER_ERROR", "XXKDS")], ApplyError),
        ([("IllegalArgumentException",)], ApplyError),
    ],
)
def test_only_what_would_happen_again_is_permanent(causes: list[tuple[str, ...]], kind: type[Exception]) -> None:
    assert type(verdict([_cause(*one) for one in causes])) is kind


def _cause(name: str, condition: str = "", state: str = "", how: str = "") -> Cause:
    return Cause(name, condition, state, passing=how == "passing", ours=how == "ours")
