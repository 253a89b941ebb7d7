"""Counts the files of a lake table: one small job over Delta's list of them, no data file is read."""

from pyspark.sql import DataFrame, SparkSession

from sluice_spark.lake.delta_calls import DeltaCalls
from sluice_spark.maintenance.planner import SPARSE, TIERS, FileCounts

_ROWS = "coalesce(cast(get_json_object(stats, '$.numRecords') as bigint), 0)"
_REMOVED = "coalesce(deletionVector.cardinality, 0)"


def count_files(session: SparkSession, path: str) -> FileCounts:
    """The files of the newest version of the Delta table at `path`. JVM errors pass: the caller translates
    them.
    """
    calls = DeltaCalls(session)
    snapshot = calls.newest(calls.log(path))
    below = [f"count_if(size < {limit})" for limit in TIERS]
    counted = DataFrame(snapshot.allFiles().toDF(), session).selectExpr(
        "count(*)",
        *below,
        f"count_if({_REMOVED} > {SPARSE} * {_ROWS})",
        "coalesce(sum(size), 0)",
        f"coalesce(sum({_ROWS}), 0)",
        f"coalesce(sum({_REMOVED}), 0)",
    )
    files, *rest = (int(value) for value in counted.collect()[0])
    *small, sparse, size, rows, removed = rest
    return FileCounts(files, tuple(small), sparse, size, rows, removed)
