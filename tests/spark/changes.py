"""Changes written by hand: rows as ingest would send them, segments as it would store them, entries
as it would chain them.
"""

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.contract import envelope, keys
from sluice.contract.chunks import BlockRange
from sluice.contract.entries import BodyCommit, Changes, Commits, Entry, Segment, Snapshot, Table, digest
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.table_state import State
from sluice.contract.types import lake_type
from sluice.manifest.reader import load_state
from sluice.store.base import ObjectStore
from sluice_spark.read.column_defaults import arrow_type
from tests.support.manifests import opened
from tests.support.reasons import because

MAP = pa.map_(pa.string(), pa.string())
TS = pa.timestamp("us", tz="UTC")
FACTS = '{"publishes": "iudt"}'
"""What the catalog says of the publication, unless a test says otherwise."""
INT4, INT8, TEXT, TIMESTAMP, NUMERIC, FLOAT8, INT4_ARRAY = 23, 20, 25, 1114, 1700, 701, 1007


def column(
    name: str,
    attnum: int,
    oid: int,
    *,
    typmod: int = -1,
    key: bool = False,
    identity: bool | None = None,
    missing: str | None = None,
) -> ColumnSchema:
    return ColumnSchema(
        name, attnum, oid, typmod, str(oid), lake_type(oid, typmod), key, key if identity is None else identity, missing
    )


def table_schema(*columns: ColumnSchema, identity: str = "d", version: int = 1, table: str = "items") -> TableSchema:
    if identity == "f":
        columns = tuple(replace(item, identity=True) for item in columns)
    return TableSchema("16385", version, "public", table, identity, columns)


@dataclass
class Change:
    """One row. `values` and `old` map column names to values; `unchanged` names columns that were
    not sent.
    """

    op: str
    values: dict[str, Any] = field(default_factory=dict)
    old: dict[str, Any] | None = None
    unchanged: tuple[str, ...] = ()
    special: dict[str, str] | None = None
    old_special: dict[str, str] | None = None
    lsn: int | None = 0
    ordinal: int = 0
    xid: int = 7


def segment_table(changes: list[Change], schema: TableSchema) -> pa.Table:
    """The Arrow form of a segment."""
    arrays: dict[str, pa.Array] = {
        item.name: pa.array([change.values.get(item.name) for change in changes], arrow_type(item.lake.sql))
        for item in schema.columns
    }
    arrays[envelope.OP] = pa.array([change.op for change in changes], pa.string())
    for name, field_ in ((envelope.LSN, "lsn"), (envelope.ORDINAL, "ordinal"), (envelope.XID, "xid")):
        arrays[name] = pa.array([getattr(change, field_) for change in changes], pa.int64())
    arrays[envelope.TS] = arrays[envelope.LSN].cast(TS)
    attnums = {item.name: item.attnum for item in schema.columns}
    arrays[envelope.UNCHANGED] = pa.array(
        [[attnums[name] for name in change.unchanged] or None for change in changes], pa.list_(pa.int16())
    )
    if schema.identity_columns:
        kind = pa.struct([(item.name, arrow_type(item.lake.sql)) for item in schema.identity_columns])
        arrays[envelope.OLD] = pa.array([change.old for change in changes], kind)
    for name, marks in (
        (envelope.SPECIAL, [change.special for change in changes]),
        (envelope.OLD_SPECIAL, [change.old_special for change in changes]),
    ):
        arrays[name] = pa.array([list(one.items()) if one else None for one in marks], MAP)
    return pa.table(arrays)


def _key(row: dict[str, Any], schema: TableSchema) -> list[Any]:
    return [row.get(item.name) for item in schema.key_columns]


class Manifest:
    """A manifest and its segments in a store, by default for one table."""

    def __init__(self, store: ObjectStore, *, origin: str = "any") -> None:
        self.store = store
        self.seq = 0
        self.sha256 = ""
        self.lsn = 100
        self.examined_lsn: int | None = None
        """Through where entries say that the catalog was examined; None: as far as each of them goes."""
        self.counter = 0
        self.epoch = 1
        self.append(opened(origin=origin, server_version=180006, start_lsn=100))

    def append(self, body: Any, *, through_lsn: int | None = None) -> int:
        from_lsn, self.lsn = self.lsn if self.seq else 0, max(self.lsn, through_lsn or self.lsn)
        self.seq += 1
        examined = self.lsn if self.examined_lsn is None else self.examined_lsn
        data = Entry(
            self.seq, self.epoch, self.sha256, from_lsn, self.lsn, "2026-01-01T00:00:00Z", body, examined
        ).encode()
        self.store.create(keys.manifest_entry(self.seq), data)
        self.sha256 = digest(data)
        return self.seq

    def table(
        self,
        schema: TableSchema,
        *,
        state: str = "snapshot",
        generation: int = 1,
        reason: str = "",
        new: bool = True,
        publishes: str | None = "iudt",
    ) -> int:
        """`publishes` is what the catalog says of the publication, None for a catalog that was
        never looked at.
        """
        fingerprint = "" if publishes is None else json.dumps({"publishes": publishes})
        names = (schema.table_id, schema.schema_name, schema.table_name)
        known = schema if new else None
        why = because(reason)
        return self.append(Table(*names, State(state), generation, why, schema=known, fingerprint=fingerprint))

    def segment(self, changes: list[Change], schema: TableSchema, *, body: BodyCommit | None = None) -> Segment:
        lsns = [body.end_lsn] if body else [change.lsn or 0 for change in changes]
        unsent = Counter(
            str(item.attnum) for change in changes for item in schema.columns if item.name in change.unchanged
        )
        moved = sum(
            change.op == "u" and change.old is not None and _key(change.old, schema) != _key(change.values, schema)
            for change in changes
        )
        stored = self.stored(
            segment_table(changes, schema), schema, first_lsn=min(lsns, default=0), last_lsn=max(lsns, default=0)
        )
        return replace(stored, unchanged=dict(unsent), key_changes=moved, body=body)

    def stored(self, rows: pa.Table, schema: TableSchema, *, first_lsn: int, last_lsn: int) -> Segment:
        """A segment of `rows`, that states only their number and operations."""
        self.counter += 1
        key = keys.segment(schema.table_id, 1, self.counter)
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, row_group_size=20_000)
        data = buffer.getvalue()
        self.store.create(key, data)
        ops = dict(Counter(rows[envelope.OP].to_pylist()))
        return Segment(
            key, schema.table_id, schema.version, len(rows), len(data), digest(data), first_lsn, last_lsn, ops
        )

    def snapshot(
        self, rows: Sequence[Mapping[str, Any]], schema: TableSchema, *, generation: int = 1, final: bool = True
    ) -> int:
        changes = [Change("i", dict(row), lsn=self.lsn, ordinal=place) for place, row in enumerate(rows)]
        segments = (self.segment(changes, schema),) if rows else ()
        return self.append(Snapshot(schema.table_id, generation, schema.version, self.lsn, segments, final))

    def chunk(
        self,
        rows: Iterable[Change | Mapping[str, Any]],
        schema: TableSchema,
        blocks: tuple[int, int],
        *,
        generation: int = 1,
        first: bool | None = None,
        lsn: int = 0,
    ) -> Snapshot:
        """The rows of these blocks as of `lsn`, by default as of now. The `first` chunk, by default that of the first
        block, says what is read.
        """
        at = lsn or self.lsn
        changes = [replace(one) if isinstance(one, Change) else Change("i", dict(one)) for one in rows]
        for place, change in enumerate(changes):
            change.lsn, change.ordinal = at, place
        segments = (self.segment(changes, schema),) if changes else ()
        relations = ("1",) if (blocks[0] == 0 if first is None else first) else ()
        ranges = (BlockRange("1", *blocks),)
        names = (schema.table_id, generation, schema.version)
        body = Snapshot(*names, at, segments, False, 1, FACTS, relations, ranges)
        self.append(body)
        return body

    def finish(self, schema: TableSchema, *, generation: int = 1) -> int:
        """No more chunks come: the snapshot is as of the last one."""
        snapshot = load_state(self.store).tables[schema.table_id].snapshot
        assert snapshot is not None
        last = Snapshot(schema.table_id, generation, schema.version, snapshot.snapshot_lsn, (), True, 1, FACTS)
        return self.append(last)

    def transaction(self, changes: list[Change], schema: TableSchema) -> int:
        """One entry with one transaction of these changes."""
        return self.entry([(changes, schema)])

    def unstored(self, *schemas: TableSchema, rows: int = 1) -> int:
        """One entry with changes of each of these tables, whose segments are in no store: for those who
        look at the manifest only.
        """
        end = self.lsn + 10
        segments = tuple(
            Segment(f"data/{schema.table_id}/{end}", schema.table_id, 1, rows, 10, "", end, end, {"i": rows})
            for schema in schemas
        )
        return self.append(Changes(segments, Commits([end], [end], [7])), through_lsn=end)

    def entry(self, parts: list[tuple[list[Change], TableSchema]]) -> int:
        end = self.lsn + 10
        ordinal = 0
        segments = []
        for changes, schema in parts:
            for change in changes:
                change.lsn, change.ordinal = end, ordinal
                ordinal += 1
            segments.append(self.segment(changes, schema))
        return self.append(Changes(tuple(segments), Commits([end], [end], [7])), through_lsn=end)
