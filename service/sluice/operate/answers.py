"""Answers of the lake in the forms of files. What is nested becomes JSON where a form has no lists and maps."""

import base64
import io
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet


def plain(value: Any) -> Any:
    """`value` as JSON can have it: bytes in base64, and as text the floats that are no numbers there."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def json_text(value: Any) -> str:
    """JSON, in which dates, times and numbers of type numeric are text."""
    return json.dumps(plain(value), default=str, ensure_ascii=False, allow_nan=False)


def as_csv(answer: pa.Table) -> bytes:
    """With a header line. Quoted where a value needs it."""
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table([_of_csv(column) for column in answer.columns], names=answer.column_names), sink)
    return sink.getvalue()


def _of_csv(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    as_text = json_text if pa.types.is_nested(column.type) else plain if _is_bytes(column.type) else None
    if as_text is None:
        return column
    return pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())


def _is_bytes(kind: pa.DataType) -> bool:
    return any(known(kind) for known in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


def as_parquet(answer: pa.Table) -> bytes:
    """One file, with the types of the answer."""
    sink = io.BytesIO()
    pyarrow.parquet.write_table(answer, sink)
    return sink.getvalue()
