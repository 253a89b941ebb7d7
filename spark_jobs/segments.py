"""Segments as Arrow tables: read through the store, checked against the manifest, completed with what the manifest knows.

Owns the promise that no byte is applied which the manifest does not describe: size and sha256 are compared first, and a missing or changed object is
fatal and named. It must not interpret changes beyond dropping rows that do not exist (rolled-back subtransactions) or that a copy holds already.
"""

import hashlib
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.contract import columns as envelope
from service.contract.entries import Segment
from service.contract.schema import TableSchema
from service.errors import ManifestCorrupt, ObjectMissing
from service.store.base import ObjectStore
from spark_jobs.constants import missing_value

ARROW_MAP = pa.map_(pa.string(), pa.string())
_TS = pa.timestamp("us", tz="UTC")


def checked_bytes(store: ObjectStore, segment: Segment) -> bytes:
    """The segment's bytes. Raises ManifestCorrupt when they are not what the manifest says."""
    try:
        data = store.get(segment.key)
    except ObjectMissing as error:
        raise ManifestCorrupt(f"the segment {segment.key} is missing", hint="was it deleted by a life-cycle rule? the table must be copied again") from error
    if len(data) != segment.bytes or hashlib.sha256(data).hexdigest() != segment.sha256:
        raise ManifestCorrupt(f"the segment {segment.key} is not the one that the manifest describes", hint="restore the object, or copy the table again")
    return data


def read_rows(store: ObjectStore, segment: Segment, *, after_lsn: int = 0) -> pa.Table:
    """The segment's changes that exist and whose commit ended after `after_lsn`, LSN and TS filled in."""
    rows = pq.read_table(pa.BufferReader(checked_bytes(store, segment)))
    if len(rows) != segment.rows:
        raise ManifestCorrupt(f"the segment {segment.key} has {len(rows)} rows, the manifest says {segment.rows}")
    if segment.body is not None:
        rows = _committed(rows, segment)
    if rows[envelope.LSN].null_count:
        raise ManifestCorrupt(f"the segment {segment.key} has changes without a commit LSN")
    if segment.first_lsn > after_lsn and segment.body is None:
        return rows
    return rows.filter(pc.greater(rows[envelope.LSN], after_lsn))


def _committed(rows: pa.Table, segment: Segment) -> pa.Table:
    body = segment.body
    assert body is not None
    if body.aborted_xids:
        rows = rows.filter(pc.invert(pc.is_in(rows[envelope.XID], pa.array(body.aborted_xids, rows[envelope.XID].type))))
    count = len(rows)
    values = {envelope.LSN: pa.array([body.end_lsn], pa.int64()), envelope.TS: pa.array([body.commit_time_us], pa.int64()).cast(_TS)}
    for name, value in values.items():
        rows = rows.set_column(rows.column_names.index(name), name, value.take(pa.nulls(count, pa.int32()).fill_null(0)))
    return rows


def unite(tables: Iterable[tuple[pa.Table, TableSchema]], schema: TableSchema) -> pa.Table:
    """Changes of several schema versions as changes of the newest: rows older than a column have its constant default."""
    parts = [_as_version(rows, version, schema) for rows, version in tables]
    return pa.concat_tables(parts, promote_options="default").combine_chunks()


def _as_version(rows: pa.Table, version: TableSchema, schema: TableSchema) -> pa.Table:
    names = set(rows.column_names)
    for column in schema.columns:
        if version.column(column.name) is not None:
            if column.name not in names:
                raise ManifestCorrupt(f"a segment of {schema.qualified_name} lacks column {column.name!r} of its schema version")
            continue
        value, text = missing_value(column)
        rows = rows.append_column(column.name, pa.array([value], value.type).take(pa.nulls(len(rows), pa.int32()).fill_null(0)))
        if text is not None:
            index = rows.column_names.index(envelope.SPECIAL)
            marked = [[*(special or []), (column.name, text)] for special in rows[envelope.SPECIAL].to_pylist()]
            rows = rows.set_column(index, envelope.SPECIAL, pa.array(marked, ARROW_MAP))
    ordered = [column.name for column in schema.columns]
    return rows.select([*ordered, *(name for name in rows.column_names if envelope.is_reserved(name))])
