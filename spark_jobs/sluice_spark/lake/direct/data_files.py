"""New data files: rows in the form that Spark writes, and the action that adds each file.

Owns: physical names and field ids of the table's column mapping, microseconds, the proleptic
Gregorian calendar, and that columns of floating-point numbers have neither statistics nor a
dictionary. (Delta protocol: Column Mapping, Add File and Remove File.)
"""

import io
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_spark.fold.row_identity import whole
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.live_files import LiveFile
from sluice_spark.lake.direct.statistics import statistics
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.layout import TableLayout

FILE_BYTES = 128 * 1024 * 1024
"""Of rows in memory; more make another file."""
_CALENDAR = {"org.apache.spark.version": "4.2.0"}
"""By this entry Spark knows that dates before 1582 are proleptic Gregorian, whatever its settings are."""


@dataclass(slots=True)
class Written:
    """New data files, with their rows and bytes together."""

    files: list[LiveFile] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    @property
    def paths(self) -> list[str]:
        """Below the table; the last one may not be there if it could not be stored."""
        return [file.path for file in self.files]

    def plus(self, other: "Written") -> None:
        """Takes what `other` has."""
        self.files += other.files
        self.rows += other.rows
        self.bytes += other.bytes

    @staticmethod
    def together(parts: Iterable["Written"]) -> "Written":
        """All of `parts`."""
        total = Written()
        for part in parts:
            total.plus(part)
        return total


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes new data files of a table of `layout` to `folder`. Each has statistics of the columns in `keys` (physical
    names).
    """

    folder: TableFolder
    layout: TableLayout
    keys: Collection[str]

    def write(self, rows: pa.Table, into: Written) -> None:
        """Writes `rows`, which have the table's columns among others. The files are named in `into`, also when it
        raises StoreError.
        """
        if len(rows):
            for part in in_files(physical(rows, self.layout)):
                self.put(part, into)

    def put(self, table: pa.Table, into: Written, *, changes: bool = True) -> None:
        """Writes one file of `table`, which has the columns of a data file. See `data_file` for `changes`."""
        path, content, add = data_file(table, self.layout, keys=self.keys, changes=changes)
        into.files.append(LiveFile.of(add, memory=table.nbytes))
        self.folder.put(path, content)
        into.rows += len(table)
        into.bytes += len(content)


def in_files(rows: pa.Table) -> Iterator[pa.Table]:
    """`rows` cut into tables for one file each."""
    count = max(1, -(-rows.nbytes // FILE_BYTES))
    size = -(-len(rows) // count)
    for start in range(0, len(rows), max(size, 1)):
        yield rows.slice(start, size)


def with_all_columns(rows: pa.Table, layout: TableLayout) -> pa.Table:
    """`rows` with NULL in each column of the table that they lack."""
    for column in layout.columns:
        if column.name not in rows.column_names:
            rows = rows.append_column(pa.field(column.name, column.field.type), pa.nulls(len(rows), column.field.type))
    return rows


def physical(rows: pa.Table, layout: TableLayout) -> pa.Table:
    """`rows`, which have the table's columns by name, as the data files have them. What no row has of the hidden
    columns is left out.
    """
    arrays = [_physical(rows[column.name], column.field.type) for column in layout.columns]
    table = pa.Table.from_arrays(arrays, schema=layout.arrow)
    for name, hidden in layout.hidden.items():
        if name in rows.column_names and rows[name].null_count < len(rows):
            table = table.append_column(hidden, rows[name])
    return table


def _physical(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    if column.type == kind:
        return column
    if not pa.types.is_struct(kind):
        return column.cast(kind)
    # A cast of a struct goes by the names of its fields, which are other ones in the file.
    array = whole(column)
    children = [_physical(pa.chunked_array([array.field(place)]), field.type) for place, field in enumerate(kind)]
    return pa.StructArray.from_arrays(
        [whole(child) for child in children], fields=list(kind), mask=array.is_null() if array.null_count else None
    )


def as_stored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of a data file that another engine may have written. Raises NotDirect when only Spark
    knows how to read it.
    """
    if column.type == kind:
        return column
    if pa.types.is_nested(kind) and not column.type.equals(kind):
        raise NotDirect("a data file holds a nested column in another form")
    return column.cast(kind)


def data_file(
    table: pa.Table, layout: TableLayout, *, keys: Collection[str], changes: bool
) -> tuple[str, bytes, dict[str, Any]]:
    """A data file of `table`: its path below the lake table, its content, and the action that adds it.
    There are statistics of the columns in `keys` (physical names) wherever they stand. `changes`
    says that its rows are not those of other files of the table.
    """
    path = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    content = parquet(table)
    return (
        path,
        content,
        {
            "path": path,
            "partitionValues": {},
            "size": len(content),
            "modificationTime": int(time.time() * 1000),
            "dataChange": changes,
            "stats": statistics(table.select(layout.arrow.names), leading=layout.statistics_columns, also=keys),
        },
    )


def parquet(table: pa.Table) -> bytes:
    """A file of `table`, which has the columns of a data file, in the form in which Spark writes it."""
    sink = io.BytesIO()
    marked = table.replace_schema_metadata(_CALENDAR)
    # Engines disagree on what bounds and dictionaries of floating-point numbers leave out: NaN, and which zero.
    stated = [one.name for one in table.schema if not (pa.types.is_nested(one.type) or pa.types.is_floating(one.type))]
    pq.write_table(
        marked, sink, compression="snappy", store_decimal_as_integer=True, coerce_timestamps="us", store_schema=False,
        use_dictionary=stated, write_statistics=stated,
    )  # fmt: skip
    return sink.getvalue()
