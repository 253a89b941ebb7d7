"""What a segment file says of itself, for people: columns, row groups, sizes. Row values only when
they are asked for by number of rows.

Invariant: `described` shows no value of any row.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.errors import ManifestCorrupt


def described(data: bytes) -> dict[str, Any]:
    """Facts of one file. Raises ManifestCorrupt when it is not Parquet."""
    file = _opened(data)
    sizes: dict[str, int] = {}
    nulls = dict.fromkeys(file.schema_arrow.names, 0)
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for position in range(group.num_columns):
            column = group.column(position)
            name = column.path_in_schema.split(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_compressed_size
    for batch in file.iter_batches():
        for name in batch.schema.names:
            nulls[name] += batch.column(name).null_count
    return {
        "rows": file.metadata.num_rows,
        "row_groups": file.metadata.num_row_groups,
        "columns": [
            {
                "name": field.name,
                "type": str(field.type),
                "ours": envelope.is_reserved(field.name),
                "compressed_bytes": sizes.get(field.name, 0),
                "nulls": nulls[field.name],
            }
            for field in file.schema_arrow
        ],
    }


def first_rows(data: bytes, *, count: int) -> Iterator[dict[str, Any]]:
    """The first rows as they are stored, name to value. For the one who asked for them, and for
    nobody's log.
    """
    for batch in _opened(data).iter_batches(batch_size=max(1, count)):
        for row in batch.to_pylist():
            if count <= 0:
                return
            count -= 1
            yield row


def _opened(data: bytes) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        raise ManifestCorrupt(
            "the object is not a Parquet file",
            hint="`sluice spool verify --content` says whether it is the one that was written",
        ) from error
