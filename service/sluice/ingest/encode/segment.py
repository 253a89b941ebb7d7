"""Segment files: Parquet, one table in one schema version, rows in the order in which they were
appended.

Invariant: a file is complete or does not exist; what `finish` returns is never touched again.
Memory is bounded by the compressed file plus one row group.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.ingest.encode.rows import EncodedRows, segment_schema
from sluice.ingest.encode.stats import SegmentStats, total

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 16 << 20
"""Small enough that a reader holds several at once, large enough that pages compress well and
footers stay short.
"""
ZSTD_LEVEL = 1
"""Measured on the inserts, updates and deletes of benchmark P1: level 3 takes more than twice the
time and makes the files no smaller.
"""
RISING = (envelope.LSN, envelope.TS, envelope.ORDINAL, envelope.XID)
"""Columns that mostly rise by little: their differences take a fraction of a byte, with or without
repeats. Those of other whole numbers and times are written in half of the time, too, and are smaller.
"""
_SAMPLE_ROWS = 2_048
_SAMPLE_SHARE = 8
"""A dictionary pays where a sample repeats each value so many times on average; elsewhere hashing
every value costs more than it saves.
"""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A finished file. `sha256` is the hexadecimal hash of `data`, whose items are bytes."""

    data: bytes | memoryview
    sha256: str
    stats: SegmentStats

    def segment(self, key: str, schema: TableSchema) -> Segment:
        """What an entry says of it, once it is stored at `key`."""
        stats = self.stats
        return Segment(
            key=key,
            table_id=schema.table_id,
            schema_version=schema.version,
            rows=stats.rows,
            bytes=len(self.data),
            sha256=self.sha256,
            first_lsn=stats.first_lsn,
            last_lsn=stats.last_lsn,
            ops=dict(stats.ops),
            unchanged={str(attnum): count for attnum, count in stats.unchanged.items()},
            key_changes=stats.key_changes,
            key_ranges=dict(stats.key_ranges),
        )


class SegmentWriter:
    """Collects rows of one schema version and writes them as one file. Used once, by one thread."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._target = segment_schema(schema)
        self._sink = pa.BufferOutputStream()
        self._parquet: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._stats = SegmentStats(0)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory: compressed row groups and rows that wait for theirs. 0 before the
        first row.
        """
        written: int = self._sink.tell()
        return written + self._waiting_bytes

    def append(self, rows: EncodedRows) -> None:
        """Rows of this very schema version; any others are a fault of the program. The table may have got
        another name meanwhile.
        """
        if rows.schema.named(self.schema.schema_name, self.schema.table_name) != self.schema:
            raise AssertionError(
                f"rows of {rows.schema.qualified_name} in schema version {rows.schema.version} are no "
                f"rows of {self.schema.version}"
            )
        self._waiting.append(rows.batch)
        self._waiting_rows += rows.batch.num_rows
        self._waiting_bytes += rows.nbytes
        self._stats = total((self._stats, rows.stats))
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_waiting()

    def finish(self) -> SegmentFile:
        """The file, also when no row was appended. Nothing may be appended afterwards."""
        self._write_waiting()
        if self._parquet is not None:
            self._parquet.close()
        data = memoryview(self._sink.getvalue()).cast("B")
        return SegmentFile(data, hashlib.sha256(data).hexdigest(), self._stats)

    def _write_waiting(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._target)
        if self._parquet is None:
            self._parquet = self._open(table)
        if table.num_rows:
            self._parquet.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        dictionary = {name for name in first.column_names if name not in RISING and _repeats(first.column(name))}
        whole = {field.name for field in self._target if _is_whole(field.type)}
        return pq.ParquetWriter(
            self._sink,
            self._target,
            version="2.6",
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=sorted(dictionary),
            column_encoding=dict.fromkeys(whole - dictionary, "DELTA_BINARY_PACKED"),
            # Nobody reads a segment by a condition.
            write_statistics=False,
            store_schema=False,
        )


def write_segment(schema: TableSchema, parts: Iterable[EncodedRows]) -> SegmentFile:
    """The parts as one file."""
    writer = SegmentWriter(schema)
    for rows in parts:
        writer.append(rows)
    return writer.finish()


def _is_whole(type_: pa.DataType) -> bool:
    """Whether it is stored as an int32 or int64 of its own."""
    return bool(pa.types.is_signed_integer(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def _repeats(column: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(column.type) or not len(column):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    distinct: int = pc.count_distinct(sample).as_py()
    return distinct * _SAMPLE_SHARE <= len(sample)
