"""A segment file with large values is read by Spark as Arrow reads it."""

import hashlib
from collections import deque
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.ingest.encode.large import write_large
from tests.support.extent import cases
from tests.support.spooled import inserted, table


def md5(value: str | bytes | None) -> str | None:
    content = value.encode() if isinstance(value, str) else value
    return None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("vectorized", cases(["true", "false"], quick=["true"]))
@pytest.mark.parametrize("many", [3, 40_000])
@pytest.mark.parametrize("type_oid", [25, 17])
def test_spark_reads_a_file_with_large_values_as_arrow_does(
    spark: SparkSession, tmp_path: Path, vectorized: str, many: int, type_oid: int
) -> None:
    schema = table(("id", 23, -1), ("v.x", type_oid, -1), ("w", type_oid, -1), ("z", 25, -1), ("n", 23, -1), key=["id"])
    noise = np.random.default_rng(7).integers(0, 256, (16 << 20) + 1, np.uint8).tobytes().hex().encode()
    lead = b"\\x" if type_oid == 17 else b""
    rows = inserted(
        schema,
        *(
            [
                b"%d" % at,
                lead + noise if at == 1 else None if at % 3 else lead + b"%06x" % at,
                lead + noise[::-1] if at == 2 else lead,
                None if at else b"z",
                b"7",
            ]
            for at in range(many)
        ),
    )
    file = write_large(deque([rows]))
    (tmp_path / "a.parquet").write_bytes(file.data)
    arrow = pq.read_table(pa.BufferReader(file.data))
    assert arrow.column("w").combine_chunks().equals(pa.array(rows.batch.column("w")))
    assert arrow.column("v.x").combine_chunks().equals(pa.array(rows.batch.column("v.x")))
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    try:
        found = spark.read.parquet(str(tmp_path))
        assert found.count() == many
        got = (
            found.select(
                "id",
                F.md5(F.col("`v.x`").cast("binary")).alias("a"),
                F.md5(F.col("w").cast("binary")).alias("b"),
                "z",
                F.col("_sluice_op").alias("o"),
            )
            .orderBy("id")
            .collect()
        )
        expected = [
            (r, md5(v), md5(w), z)
            for r, v, w, z in zip(*(arrow.column(c).to_pylist() for c in ("id", "v.x", "w", "z")), strict=True)
        ]
        assert [(r.id, r.a, r.b, r.z) for r in got] == expected
        assert found.where("w is null").count() == 0
        assert found.where("`v.x` is null").count() == sum(v is None for v in arrow.column("v.x").to_pylist())
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
