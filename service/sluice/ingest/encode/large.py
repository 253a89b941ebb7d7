"""Segment files of rows with a value so large that each copy of it counts.

Arrow's writer copies the values of a column chunk, and has their compressed form up to three times.
So it writes the file without the columns of such values, and their column chunks are put in here:
one page each, compressed piece by piece into the memory in which the file stays.

Invariant: the file is what `SegmentWriter` would write, value for value; its large columns have no
statistics, no dictionary, and pages of the second version.
(Parquet: File format, Data pages, RLE / bit-packing hybrid, parquet.thrift.)
"""

import hashlib
import struct
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.ingest.encode import thrift
from sluice.ingest.encode.rows import EncodedRows, is_large, segment_schema
from sluice.ingest.encode.segment import RISING, ZSTD_LEVEL, SegmentFile
from sluice.ingest.encode.views import Mask
from sluice.protocol.buffers import private_memory

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
"""The footer's length, and the magic again."""
_PIECE_BYTES = 1 << 20
_SLACK_BYTES = 1 << 20
_EXPANSION = 128
"""Zstandard makes what it cannot compress longer by a 256th and a few bytes a block."""
_MOST_PAGE_BYTES = 1 << 31
"""A page states its sizes as 32-bit integers. What is larger is left to Arrow, which makes more pages."""
_BIT_PACKED = 1
_DATA_PAGE_V2, _PLAIN = 3, 0

_META = 3
"""Where a column chunk of parquet.thrift has what it tells; the others are fields of FileMetaData,
RowGroup and ColumnMetaData.
"""
_ROW_GROUPS = 4
_CHUNKS, _GROUP_UNCOMPRESSED, _GROUP_COMPRESSED = 1, 2, 6
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _INDEX_OFFSET, _DICTIONARY_OFFSET, _SIZE_STATISTICS = (
    3,
    6,
    7,
    9,
    10,
    11,
    16,
)


def write_large(queue: deque[EncodedRows]) -> SegmentFile:
    """Takes the first rows off `queue` and makes them a file of their own. Large values within
    lists or structs are left to Arrow, at its price.
    """
    rows = queue.popleft()
    batch = rows.batch
    names = [
        name
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if _is_bytes(column.type) and is_large(column) and _most_bytes(column) < _MOST_PAGE_BYTES
    ]
    rest = _without(rows, names)
    footer_bytes = int.from_bytes(rest[-_TAIL_BYTES : -len(_MAGIC)], "little")
    footer = thrift.read(rest[-_TAIL_BYTES - footer_bytes : -_TAIL_BYTES].to_pybytes())
    out = _Out(len(rest) + sum(_most_bytes(batch.column(name)) for name in names))
    out.write(_MAGIC)
    for group in thrift.structs(footer, _ROW_GROUPS):
        sizes = [0, 0]
        for chunk in thrift.structs(group, _CHUNKS):
            meta = thrift.inner(chunk, _META)
            path = thrift.elements(meta, _PATH)
            if len(path) == 1 and path[0].decode() in names:
                _put_column(out, meta, batch.column(path[0].decode()))
            else:
                _copy_column(out, meta, rest)
            sizes = [sizes[0] + thrift.number(meta, _UNCOMPRESSED), sizes[1] + thrift.number(meta, _COMPRESSED)]
        thrift.put_number(group, _GROUP_UNCOMPRESSED, sizes[0])
        thrift.put_number(group, _GROUP_COMPRESSED, sizes[1])
    written = thrift.write(footer)
    out.write(written + len(written).to_bytes(4, "little") + _MAGIC)
    data = out.taken()
    return SegmentFile(data, hashlib.sha256(data).hexdigest(), rows.stats)


class _Out:
    """A file in memory, written from front to back; pyarrow takes it for a file as well."""

    closed = False

    def __init__(self, most_bytes: int) -> None:
        self._memory = private_memory(most_bytes)
        self.size = 0

    def write(self, content: bytes | memoryview) -> int:
        with memoryview(content) as view:
            end = self.size + len(view)
            self._memory[self.size : end] = view
        self.size = end
        return len(content)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """The file goes on: only what was compressed has ended."""

    def insert(self, at: int, content: bytes) -> None:
        """Puts `content` before what was written from `at` on."""
        self._memory.move(at + len(content), at, self.size - at)
        self._memory[at : at + len(content)] = content
        self.size += len(content)

    def taken(self) -> memoryview:
        return memoryview(self._memory)[: self.size]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _without(rows: EncodedRows, names: list[str]) -> pa.Buffer:
    """The file with nulls in the columns `names`."""
    target = segment_schema(rows.schema)
    columns = [
        pa.nulls(len(rows.batch), column.type) if name in names else column
        for name, column in zip(target.names, rows.batch.columns, strict=True)
    ]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        target,
        version="2.6",
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        data_page_version="2.0",
        use_dictionary=False,
        write_statistics=[
            name for name, column in zip(target.names, rows.batch.columns, strict=True) if not is_large(column)
        ],
        column_encoding=dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
        store_schema=False,
    ) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=target), row_group_size=max(1, len(rows.batch)))
    return sink.getvalue()


def _most_bytes(column: pa.Array) -> int:
    """More than the column's chunk can take."""
    plain = int(column.nbytes) + 4 * len(column)
    return plain + plain // _EXPANSION + _SLACK_BYTES


def _copy_column(out: _Out, meta: thrift.Struct, rest: pa.Buffer) -> None:
    """The column chunk as it is, in its new place."""
    offsets = [number for number in (_DATA_OFFSET, _INDEX_OFFSET, _DICTIONARY_OFFSET) if number in meta]
    begin = min(thrift.number(meta, number) for number in offsets)
    for number in offsets:
        thrift.put_number(meta, number, thrift.number(meta, number) - begin + out.size)
    out.write(memoryview(rest)[begin : begin + thrift.number(meta, _COMPRESSED)])


def _put_column(out: _Out, meta: thrift.Struct, column: pa.Array) -> None:
    """The column as a chunk of one page."""
    begin = out.size
    present = column.is_valid().to_numpy(zero_copy_only=False)
    packed = np.packbits(present, bitorder="little").tobytes()
    levels = thrift.varint(len(packed) << 1 | _BIT_PACKED) + packed
    out.write(levels)
    plain_bytes = _compress(out, column, present)
    page: thrift.Struct = {
        1: (thrift.I32, _DATA_PAGE_V2),
        2: (thrift.I32, len(levels) + plain_bytes),
        3: (thrift.I32, out.size - begin),
        8: (
            thrift.STRUCT,
            {
                1: (thrift.I32, len(column)),
                2: (thrift.I32, int(column.null_count)),
                3: (thrift.I32, len(column)),
                4: (thrift.I32, _PLAIN),
                5: (thrift.I32, len(levels)),
                6: (thrift.I32, 0),
                7: (thrift.TRUE, True),
            },
        ),
    }
    header = thrift.write(page)
    out.insert(begin, header)
    thrift.put_number(meta, _UNCOMPRESSED, len(header) + len(levels) + plain_bytes)
    thrift.put_number(meta, _COMPRESSED, out.size - begin)
    thrift.put_number(meta, _DATA_OFFSET, begin)
    meta.pop(_SIZE_STATISTICS, None)


def _compress(out: _Out, column: pa.Array, present: Mask) -> int:
    """The values, each behind its length, in one frame. Returns how many bytes they were."""
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    values = memoryview(content)
    plain_bytes = 0
    # A stream takes no level; its own is that of every other segment file.
    with pa.CompressedOutputStream(pa.PythonFile(out, mode="w"), "zstd") as stream:
        for at in np.flatnonzero(present).tolist():
            begin, end = int(bounds[at]), int(bounds[at + 1])
            stream.write(struct.pack("<i", end - begin))
            for first in range(begin, end, _PIECE_BYTES):
                stream.write(values[first : min(first + _PIECE_BYTES, end)])
            plain_bytes += 4 + end - begin
    return plain_bytes
