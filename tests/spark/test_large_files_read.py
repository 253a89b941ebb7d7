"""A file with large values, which is written in another form than others, is read by Spark as Arrow reads it."""

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
from sluice.protocol.buffers import LARGE_BYTES
from tests.support.extent import cases
from tests.support.spooled import inserted, table


def md5(value: str | bytes | None) -> str | None:
    content = value.encode() if isinstance(value, str) else value
    return None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("vectorized", cases(["true", "false"], quick=["true"]))
@pytest.mark.parametrize("many", cases([3, 40_000], quick=[3]))
@pytest.mark.parametrize("type_oid", cases([25, 17], quick=[]), ids=["text", "bytea"])
def test_spark_reads_a_file_with_large_values_as_arrow_does(
    spark: SparkSession, tmp_path: Path, vectorized: str, many: int, type_oid: int
) -> None:
    schema = table(("id", 23, -1), ("v.x", type_oid, -1), ("w", type_oid, -1), ("z", 25, -1), ("n", 23, -1), key=["id"])
    noise = np.random.default_rng(7).integers(0, 256, LARGE_BYTES + 1, np.uint8).tobytes().hex().encode()
    lead = b"\\x" if type_oid == 17 else b""

    def row(at: int) -> list[bytes | None]:
        value = lead + noise if at == 1 else None if at % 3 else lead + b"%06x" % at
        return [b"%d" % at, value, lead + noise[::-1] if at == 2 else lead, None if at else b"z", b"7"]

    rows = inserted(schema, *map(row, range(many)))
    file = write_large(deque([rows]))
    (tmp_path / "a.parquet").write_bytes(file.data)
    arrow = pq.read_table(pa.BufferReader(file.data))
    for name in ("w", "v.x"):
        assert arrow.column(name).combine_chunks().equals(pa.array(rows.batch.column(name)))
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    try:
        found = spark.read.parquet(str(tmp_path))
        assert found.count() == many
        hashed = (F.md5(F.col(name).cast("binary")) for name in ("`v.x`", "w"))
        plain = ("z", "_sluice_op", "_sluice_lsn", "_sluice_ordinal")
        expected = [
            (r, md5(v), md5(w), *others)
            for r, v, w, *others in zip(*(arrow.column(c).to_pylist() for c in ("id", "v.x", "w", *plain)), strict=True)
        ]
        assert list(map(tuple, found.select("id", *hashed, *plain).orderBy("id").collect())) == expected
        assert found.where("w is null").count() == 0
        assert found.where("`v.x` is null").count() == arrow.column("v.x").null_count
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
