"""Files that hold a large value are written in another form than others, and Spark, which reads
those of a snapshot itself, reads them as well.
"""

from collections import deque
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.ingest.encode.large import write_large
from sluice.protocol.buffers import LARGE_BYTES
from tests.support.spooled import inserted, table


@pytest.mark.parametrize("type_oid", [25, 17], ids=["text", "bytea"])
def test_spark_reads_a_file_with_a_large_value(spark: SparkSession, tmp_path: Path, type_oid: int) -> None:
    schema = table(("id", 23, -1), ("v", type_oid, -1), key=["id"])
    large = b"\\x" + b"ab" * (LARGE_BYTES + 1) if type_oid == 17 else b"x" * (LARGE_BYTES + 1)
    small = b"\\xff00" if type_oid == 17 else b"small"
    file = write_large(deque([inserted(schema, [b"1", small], [b"2", large], [b"3", None])]))
    (tmp_path / "large.parquet").write_bytes(file.data)
    rows = (
        spark.read.parquet(str(tmp_path))
        .selectExpr("id", "octet_length(v)", "_sluice_lsn", "_sluice_ordinal", "_sluice_op")
        .collect()
    )
    short = 2 if type_oid == 17 else 5
    assert [tuple(row) for row in rows] == [
        (1, short, 1_000, 0, "i"),
        (2, LARGE_BYTES + 1, 1_000, 1, "i"),
        (3, None, 1_000, 2, "i"),
    ]
