"""The trace contexts in the logical messages of an entry, read from the segment that has them.

Invariant: bounded in memory, whatever applications emit. Messages of rolled-back subtransactions, and those that may
be of one, say nothing. A message is data of an application: only identifiers of traces are taken from it.
"""

from collections.abc import Iterator
from io import BytesIO

import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.errors import StoreError
from sluice.store.base import ObjectStore
from sluice.tracing.spans import MOST_CONTEXTS, PREFIX, Context, Published, context_of

LARGEST_SEGMENT = 16 * 1024 * 1024
"""A segment with more than this is not read."""
_ROWS = 1024
_IN_DOUBT = "in_doubt"
"""As `sluice.tables.messages` has it, which the applier does not see."""


def contexts_of(store: ObjectStore, entry: Published) -> tuple[Context, ...]:
    """Those of the first transactions that have one, at most MOST_CONTEXTS. Fewer while the store does not answer."""
    found: dict[Context, None] = {}
    for segment in entry.messages:
        if segment.bytes > LARGEST_SEGMENT:
            continue
        try:
            data = store.get(segment.key)
        except StoreError:
            continue
        for context in _in_segment(data, segment):
            found.setdefault(context)
            if len(found) == MOST_CONTEXTS:
                return tuple(found)
    return tuple(found)


def _in_segment(data: bytes, segment: Segment) -> Iterator[Context]:
    file, body = pq.ParquetFile(BytesIO(data)), segment.body
    columns = ["prefix", "transactional", "content", _IN_DOUBT, envelope.XID, *([] if body else [envelope.TS])]
    for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
        for row in batch.to_pylist():
            if row["prefix"] != PREFIX or not row["transactional"] or row[_IN_DOUBT]:
                continue
            if body is not None and row[envelope.XID] in body.aborted_xids:
                continue
            at = row.get(envelope.TS)
            time_us = body.commit_time_us if body else round(at.timestamp() * 1e6) if at else 0
            span = context_of(row["content"])
            if span is not None:
                yield Context(span, time_us)
