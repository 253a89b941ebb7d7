"""One table read by ADBC or connectorx and written to Parquet, in the environment of the peers: prints one JSON line
with what it cost and the types that the columns came in.

Seconds run from the query to the end of the file.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 65_536
QUERY = "SELECT * FROM w1"


@contextmanager
def opened(peer: str, dsn: str) -> Iterator[pa.RecordBatchReader]:
    if peer == "connectorx":
        import connectorx

        reader = connectorx.read_sql(dsn, QUERY, return_type="arrow_stream", batch_size=BATCH_ROWS)
        yield reader
        return
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        yield cursor.fetch_record_batch()


peer, dsn, path = sys.argv[1:]
began = time.perf_counter()
with opened(peer, dsn) as reader:
    plain = pa.schema([pa.field(one.name, getattr(one.type, "storage_type", one.type)) for one in reader.schema])
    types = {one.name: str(one.type) for one in reader.schema}
    with pq.ParquetWriter(path, plain, compression="zstd") as writer:
        for batch in reader:
            arrays = [column.storage if isinstance(column, pa.ExtensionArray) else column for column in batch.columns]
            writer.write_batch(pa.record_batch(arrays, schema=plain))
    seconds = time.perf_counter() - began
lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "cpu_s": time.process_time(), "peak_rss_mb": peak, "types": types}))
