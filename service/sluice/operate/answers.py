"""Answers of the lake in the forms of files. What is nested becomes JSON where a form has no lists and maps."""

import io
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet


def as_csv(answer: pa.Table) -> bytes:
    """With a header line. Quoted where a value needs it."""
    columns = [
        pa.array(
            [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()], pa.string()
        )
        if pa.types.is_nested(column.type)
        else column
        for column in answer.columns
    ]
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns, names=answer.column_names), sink)
    return sink.getvalue()


def as_parquet(answer: pa.Table) -> bytes:
    """One file, with the types of the answer."""
    sink = io.BytesIO()
    pyarrow.parquet.write_table(answer, sink)
    return sink.getvalue()
