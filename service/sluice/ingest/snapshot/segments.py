"""The rows of one table as of a snapshot, to segment files in the store.

Invariant: a file is named by nothing until the snapshot is published whole; what was stored of a snapshot
that did not finish is a leftover.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import structlog

from sluice import faults
from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.errors import SourceUnavailable
from sluice.ingest.commit.committer import Committer
from sluice.ingest.encode.large import write_large
from sluice.ingest.encode.rows import EncodedRows, encode_rows
from sluice.ingest.encode.segment import SegmentFile, SegmentWriter
from sluice.ingest.snapshot.reader import read_table
from sluice.ingest.status import SnapshotCounts
from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.tuples import RowColumns
from sluice.source.sessions import SourceOptions
from sluice.source.snapshot_export import SnapshotHolder

SEGMENT_BYTES = 64 << 20
"""Received bytes per segment: about 20 MB of Parquet, small enough to hold several in memory while
they upload.
"""
PROGRESS_SECONDS = 5.0


class SnapshotSegments:
    """For the thread that reads snapshots. Rows are added to `counts` as they arrive."""

    def __init__(
        self,
        options: SourceOptions,
        committer: Committer,
        *,
        epoch: int,
        numbers: Iterator[int],
        counts: SnapshotCounts,
        stop: threading.Event,
    ) -> None:
        self._options = options
        self._committer = committer
        self._epoch = epoch
        self._numbers = numbers
        self._counts = counts
        self._stop = stop
        self._logger = structlog.get_logger("snapshot")

    def read(
        self, facts: TableFacts, schema: TableSchema, holder: SnapshotHolder, *, accept_empty: bool
    ) -> Iterator["Future[Segment]"]:
        """Reads the table and stores its rows; yields each file as it begins to be stored. Raises
        what `read_table` raises, UnsupportedChange for a value that cannot be carried, and
        SourceUnavailable when told to stop.
        """
        reader = CopyRows(len(schema.columns))
        writer = SegmentWriter(schema)
        ordinal = received = 0
        shown = time.monotonic()
        now_us = time.time_ns() // 1000
        for chunks in read_table(
            self._options, schema=schema, facts=facts, snapshot=holder.snapshot_name, accept_empty=accept_empty
        ):
            if self._stop.is_set():
                raise SourceUnavailable(
                    f"the snapshot of {schema.qualified_name} was stopped", hint="it begins again at the next start"
                )
            faults.point("snapshot.read")
            taken = sum(map(len, chunks))
            encoded = _encode(
                reader.feed(chunks, emptied=True), schema, lsn=holder.consistent_lsn, ordinal=ordinal, time_us=now_us
            )
            chunks.clear()
            count = encoded[0].stats.rows if encoded else 0
            if encoded and encoded[0].large:
                yield self._store(schema, write_large(encoded))
            elif encoded:
                writer.append(encoded.popleft())
            ordinal += count
            received += taken
            self._count(rows=ordinal, nbytes=received, new_rows=count, new_bytes=taken)
            if writer.nbytes >= SEGMENT_BYTES:
                yield self._store(schema, writer.finish())
                writer = SegmentWriter(schema)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                self._logger.info(
                    "snapshot", table=schema.qualified_name, rows=ordinal, estimated_rows=facts.estimated_rows
                )
        reader.close()
        if writer.nbytes:
            yield self._store(schema, writer.finish())

    def _count(self, *, rows: int, nbytes: int, new_rows: int, new_bytes: int) -> None:
        counts, progress = self._counts, self._counts.progress
        progress.rows, progress.bytes = rows, nbytes
        counts.rows += new_rows
        counts.bytes += new_bytes
        counts.beat = time.time()

    def _store(self, schema: TableSchema, file: SegmentFile) -> "Future[Segment]":
        return self._committer.upload(keys.segment(schema.table_id, self._epoch, next(self._numbers)), schema, file)


def _encode(rows: RowColumns, schema: TableSchema, *, lsn: int, ordinal: int, time_us: int) -> deque[EncodedRows]:
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
    )
    return deque([encoded])
