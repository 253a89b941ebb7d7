"""Rows as the server sent them, kept unread until their table's shape is known.

While a transaction is open, the shape that it gave a table is nowhere to be looked up: the catalog
shows it to nobody else. Rows of such a shape are written in no schema version at all, neither in
memory nor in a file: they stay the bytes that came, and are encoded when the transaction has
committed.

Invariant: what `read_sent_file` gives is what `write_sent_file` took. Nothing here looks at a
value.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract.column_values import NO_KEYS, HashKeys
from sluice.contract.schema import TableSchema
from sluice.contract.xids import XidIntervals
from sluice.ingest.encode.column_rules import stored_rows
from sluice.ingest.encode.rows import EncodedRows, Numbers, among, encode_rows, encode_truncate
from sluice.ingest.encode.segment import ZSTD_LEVEL, SegmentFile
from sluice.ingest.encode.stats import SegmentStats
from sluice.ingest.encode.views import Texts
from sluice.protocol.frames import FrameTable, Offsets, rejoin
from sluice.protocol.tuples import walk_rows

_FRAME, _ORDINAL, _XID, _STREAMED = "frame", "ordinal", "xid", "streamed"
_FILE = pa.schema([(_FRAME, pa.binary()), (_ORDINAL, pa.int64()), (_XID, pa.int64()), (_STREAMED, pa.bool_())])


@dataclass(frozen=True, slots=True, eq=False)
class SentRows:
    """Changes of one relation version in the order received. A change without a frame is a
    TRUNCATE. All of them came inside a stream, or none did.
    """

    batch: pa.RecordBatch

    def __len__(self) -> int:
        rows: int = self.batch.num_rows
        return rows

    @property
    def nbytes(self) -> int:
        size: int = self.batch.nbytes
        return size

    def without(self, xids: XidIntervals) -> "SentRows":
        """The changes that are not of the rolled-back subtransactions `xids`."""
        gone = among(self.batch.column(_XID).to_numpy(), xids)
        return SentRows(self.batch.filter(pa.array(~gone))) if gone.any() else self

    def withheld(self) -> "SentRows":
        """That there were changes, without what they are: for tables of which no value may be stored before their
        column rules are applied. A TRUNCATE has nothing to withhold.
        """
        nothing = pc.if_else(self.batch.column(_FRAME).is_valid(), pa.scalar(b"", pa.binary()), None)
        return SentRows(self.batch.set_column(0, _FILE.field(_FRAME), nothing))

    @property
    def is_withheld(self) -> bool:
        """Whether what a change is was withheld: no message is empty."""
        return bool(pc.any(pc.equal(pc.binary_length(self.batch.column(_FRAME)), 0)).as_py())

    def encoded(
        self, schema: TableSchema, *, lsn: int, commit_time_us: int, keys: HashKeys = NO_KEYS
    ) -> Iterator[EncodedRows]:
        """The changes in `schema`, once their transaction has committed. Raises DecodeError and
        UnsupportedChange, as `encode_rows` does.
        """
        ordinal, xid = self.batch.column(_ORDINAL).to_numpy(), self.batch.column(_XID).to_numpy()
        is_row = self.batch.column(_FRAME).is_valid().to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(~is_row).tolist():
            yield encode_truncate(
                schema, ordinal=int(ordinal[at]), xid=int(xid[at]), lsn=lsn, commit_time_us=commit_time_us
            )
        count = int(is_row.sum())
        if count:
            frames = self.batch.column(_FRAME).filter(pa.array(is_row))
            rows = walk_rows(
                _table(frames),
                np.arange(count),
                len(schema.sent),
                in_stream=bool(self.batch.column(_STREAMED)[0].as_py()),
            )
            known, time = np.full(count, lsn, np.int64), np.full(count, commit_time_us, np.int64)
            yield encode_rows(
                stored_rows(rows, schema),
                schema,
                ordinal=ordinal[is_row],
                xid=xid[is_row],
                lsn=known,
                commit_time_us=time,
                keys=keys,
            )


def sent_rows(table: FrameTable, rows: Offsets, *, ordinal: Numbers, xid: Numbers, in_stream: bool) -> SentRows:
    """The row messages `rows` (indices into `table`), copied: the table may go."""
    start, count = table.start[rows], len(rows)
    frames = Texts(
        table.raw, start, (table.end[rows] - start).astype(np.int32), np.ones(count, np.bool_), "a row"
    ).binary()
    return SentRows(
        pa.RecordBatch.from_arrays(
            [frames, pa.array(ordinal), pa.array(xid), pa.repeat(in_stream, count)], schema=_FILE
        )
    )


def sent_truncate(*, ordinal: int, xid: int) -> SentRows:
    """One TRUNCATE: it has nothing to be read."""
    return SentRows(pa.RecordBatch.from_pylist([{_ORDINAL: ordinal, _XID: xid}], schema=_FILE))


def write_sent_file(parts: Iterable[SentRows]) -> SegmentFile:
    """A file with the parts as row groups, so that reading it back takes the memory of one. Its
    statistics are its number of rows.
    """
    sink = pa.BufferOutputStream()
    rows = 0
    with pq.ParquetWriter(
        sink, _FILE, compression="zstd", compression_level=ZSTD_LEVEL, use_dictionary=False, write_statistics=False
    ) as writer:
        for part in parts:
            writer.write_batch(part.batch, row_group_size=max(1, len(part)))
            rows += len(part)
    data: bytes = sink.getvalue().to_pybytes()
    return SegmentFile(data, hashlib.sha256(data).hexdigest(), SegmentStats(rows))


def read_sent_file(data: bytes) -> Iterator[SentRows]:
    """The parts of a file that `write_sent_file` made."""
    file = pq.ParquetFile(pa.BufferReader(data))
    for group in range(file.metadata.num_row_groups):
        for batch in file.read_row_group(group).combine_chunks().to_batches():
            yield SentRows(batch.cast(_FILE))


def _table(frames: pa.Array) -> FrameTable:
    """The frames as one table again; `frames` has no nulls."""
    _, offsets, content = frames.buffers()
    bounds = np.frombuffer(offsets, np.int32)[frames.offset : frames.offset + len(frames) + 1].astype(np.int64)
    return rejoin(memoryview(content)[int(bounds[0]) : int(bounds[-1])], bounds[1:] - bounds[0])
