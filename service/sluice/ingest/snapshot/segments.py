"""The rows of one table as of a snapshot, to segment files in the store.

Invariant: a file is named by nothing until the snapshot is published whole; what was stored of a snapshot
that did not finish is a leftover.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from sluice import faults
from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.chunks import BlockRange
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.errors import SourceUnavailable
from sluice.ingest.commit.committer import Committer
from sluice.ingest.encode.large import write_large
from sluice.ingest.encode.rows import EncodedRows, encode_rows
from sluice.ingest.encode.segment import SegmentFile, SegmentWriter
from sluice.ingest.snapshot.load_gate import LoadGate, LoadLimits
from sluice.ingest.snapshot.rate import RateLimit
from sluice.ingest.snapshot.reader import SnapshotSession, binary_columns, read_rows
from sluice.ingest.status import SnapshotCounts
from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.tuples import RowColumns
from sluice.source.sessions import KnownSource

SEGMENT_BYTES = 64 << 20
"""Received bytes per segment: about 20 MB of Parquet, small enough to hold several in memory while
they upload.
"""
_BLOCK_BITS = 11
"""A block of 32 KiB, the largest that PostgreSQL can be built with, has fewer than 2,048 rows."""
_RELATION_BITS = 32 + _BLOCK_BITS


class SnapshotSegments:
    """For the threads that read snapshots. Rows are added to `counts` as they arrive; all threads together
    read at most `rows_per_second` (0: as fast as they come). `gate` is for whoever begins to read.
    """

    def __init__(
        self,
        options: KnownSource,
        committer: Committer,
        *,
        epoch: int,
        numbers: Iterator[int],
        counts: SnapshotCounts,
        stop: threading.Event,
        rows_per_second: int = 0,
        load: LoadLimits,
    ) -> None:
        self._options = options
        self._committer = committer
        self._epoch = epoch
        self._numbers = numbers
        self._counts = counts
        self._stop = stop
        self._limit = RateLimit(rows_per_second, stop)
        self.gate = LoadGate(options, load, counts=counts, stop=stop)

    def read(
        self,
        session: SnapshotSession,
        facts: TableFacts,
        schema: TableSchema,
        *,
        lsn: int,
        ranges: Sequence[BlockRange | None],
        relations: Sequence[str],
        accept_empty: bool,
    ) -> Iterator["Future[Segment]"]:
        """Reads these blocks of the table (None: all), which is locked, as of `lsn` and stores their rows;
        yields each file as it begins to be stored. Raises what `read_rows` raises, UnsupportedChange for
        a value that cannot be carried, and SourceUnavailable when stopped.
        """
        writer = SegmentWriter(schema)
        now_us = time.time_ns() // 1000
        for blocks in ranges:
            reader = CopyRows(len(schema.columns), binary_columns(schema))
            ordinal = first_ordinal(blocks, relations)
            for read in read_rows(session, schema=schema, facts=facts, blocks=blocks, accept_empty=accept_empty):
                self._require_going_on(schema)
                faults.point("snapshot.read")
                taken = sum(read.sizes)
                rows = reader.feed(read.chunks, sizes=read.sizes, emptied=True)
                read.chunks.clear()
                encoded = self._encoded(rows, schema, lsn=lsn, ordinal=ordinal, time_us=now_us)
                del rows
                count = encoded[0].stats.rows if encoded else 0
                if encoded and encoded[0].large:
                    yield self._store(schema, write_large(encoded))
                elif encoded:
                    writer.append(encoded.popleft())
                ordinal += count
                self._counts.add(schema.qualified_name, rows=count, nbytes=taken)
                if writer.nbytes >= SEGMENT_BYTES:
                    yield self._store(schema, writer.finish())
                    writer = SegmentWriter(schema)
                self._limit.take(count)
            reader.close()
        if writer.nbytes:
            yield self._store(schema, writer.finish())

    def _encoded(
        self, rows: RowColumns, schema: TableSchema, *, lsn: int, ordinal: int, time_us: int
    ) -> deque[EncodedRows]:
        """The rows, if there are any; nothing else holds them or what they came in."""
        count = len(rows.op)
        if not count:
            return deque()
        encoded = encode_rows(
            rows,
            schema,
            ordinal=np.arange(ordinal, ordinal + count),
            xid=np.zeros(count, np.int64),
            lsn=np.full(count, lsn, np.int64),
            commit_time_us=np.full(count, time_us, np.int64),
            keys=self._options.hash_keys,
        )
        return deque([encoded])

    def _require_going_on(self, schema: TableSchema) -> None:
        if self._stop.is_set():
            raise SourceUnavailable(
                f"the snapshot of {schema.qualified_name} was stopped", hint="it continues after the next start"
            )

    def _store(self, schema: TableSchema, file: SegmentFile) -> "Future[Segment]":
        return self._committer.upload(keys.segment(schema.table_id, self._epoch, next(self._numbers)), schema, file)


def first_ordinal(blocks: BlockRange | None, relations: Sequence[str]) -> int:
    """The ordinal of the first row in `blocks` of one of `relations`: no two rows of a snapshot have the
    same.
    """
    if blocks is None:
        return 0
    return (relations.index(blocks.relation) << _RELATION_BITS) + (blocks.first << _BLOCK_BITS)
