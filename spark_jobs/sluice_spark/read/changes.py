"""The changes of one window, or the rows of a snapshot, as Arrow tables: segments read through the
store, checked against the manifest and completed with what the manifest says.

Owns two promises. No byte is applied that the manifest does not describe: size and sha256 are
compared first, and a missing or changed object is fatal and named. A window stays in memory only
when its decoded rows fit: what decides is their size, not the size of the files. Must not interpret
changes, except to drop rows that do not exist (rolled-back subtransactions) or that the snapshot
has already, and to cut a large window.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.xids import XidIntervals
from sluice.errors import ManifestCorrupt, ObjectMissing, UnsupportedChange
from sluice.store.base import ObjectStore
from sluice_spark.fold.partition import Cutter, Groups, Hashes, Links, cutter_for, weight
from sluice_spark.fold.row_identity import OLD_WHOLE, whole
from sluice_spark.fold.spill import Versioned, coalesced, portions
from sluice_spark.read.column_defaults import arrow_type, missing_value
from sluice_spark.read.projection import Projection

ARROW_MAP = pa.map_(pa.string(), pa.string())
Taken = list[Versioned]
"""Changes that are in memory together."""
NEWEST = (1 << 63) - 1
"""A position behind every change."""
_TS = pa.timestamp("us", tz="UTC")
_LINK_COST = 100
"""Bytes that one link takes while the groups are found."""


@dataclass(slots=True)
class Count:
    """How many changes there were, of which kinds (by the codes of the envelope), and the
    newest commit time among them.
    """

    rows: int = 0
    commit_time_us: int = 0
    ops: Counter[str] = field(default_factory=Counter)

    def over(self, changes: Iterable[Versioned]) -> Iterator[Versioned]:
        for rows, version in changes:
            self.rows += len(rows)
            self.commit_time_us = max(self.commit_time_us, pc.max(rows[envelope.TS]).cast(pa.int64()).as_py() or 0)
            for kind in pc.value_counts(rows[envelope.OP]).to_pylist():
                self.ops[kind["values"]] += kind["counts"]
            yield rows, version

    def by_kind(self) -> dict[str, int]:
        """The changes by kind, in the words of the metrics."""
        return {envelope.OP_NAMES[op]: rows for op, rows in self.ops.items()}


def versions_in(changes: Iterable[Versioned]) -> list[TableSchema]:
    """The schema versions of `changes`, ascending."""
    found = {version.version: version for _, version in changes}
    return [found[number] for number in sorted(found)]


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """Changes of `segments` that exist and ended after `after_lsn` and not after `until_lsn`, with the schema
    version each table of them has. With a `target` they are projected onto that version, and so are theirs.
    """

    store: ObjectStore
    segments: Sequence[Segment]
    schemas: Mapping[int, TableSchema]
    after_lsn: int
    target: TableSchema | None = None
    until_lsn: int = NEWEST

    def __iter__(self) -> Iterator[Versioned]:
        for segment in self.segments:
            version = self.schemas[segment.schema_version]
            for rows in self._rows(segment):
                yield self._projected(rows, version)

    def _rows(self, segment: Segment, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        return read_rows(self.store, segment, after_lsn=self.after_lsn, until_lsn=self.until_lsn, names=names)

    def onto(self, target: TableSchema) -> "WindowChanges":
        """The same changes as rows of `target`, the version that the lake table has."""
        return replace(self, target=target)

    def projected(self, taken: Iterable[Versioned]) -> Taken:
        """Changes that were read before it was known what the lake table has."""
        return [self._projected(rows, version) for rows, version in taken]

    def seen(self, versions: Iterable[TableSchema]) -> list[TableSchema]:
        """What changes of these versions look like, ascending."""
        found = {one.version: Projection(one, self.target or one).schema for one in versions}
        return [found[number] for number in sorted(found)]

    def _projected(self, rows: pa.Table, version: TableSchema) -> Versioned:
        if self.target is None:
            return rows, version
        projection = Projection(version, self.target)
        projection.require_whole(rows)
        return projection.of(rows), projection.schema

    def read_within(self, limit: int, *, wanted: Callable[[], bool] = lambda: True) -> Taken | None:
        """All of them, or None when they weigh more than `limit` or are no longer `wanted`."""
        if sum(segment.bytes for segment in self.segments) > limit:
            return None
        taken: Taken = []
        size = 0
        for rows, version in self:
            size += weight(rows, version)
            if size > limit or not wanted():
                return None
            taken.append((rows, version))
        return taken

    def versions(self) -> list[TableSchema]:
        """The schema versions of which there is a change, ascending: a version that came with a
        rolled-back change does not count.
        """
        numbers = sorted({segment.schema_version for segment in self.segments})
        return [
            self.schemas[number]
            for number in numbers
            if any(segment.schema_version == number and self._has_rows(segment) for segment in self.segments)
        ]

    def tables(self, count: Count, *, limit: int) -> Iterator[Versioned]:
        """The changes in tables of up to about a quarter of `limit`; `count` counts them."""
        return coalesced(count.over(self), limit=limit // 4)

    def portions(
        self, count: Count, versions: Sequence[TableSchema], *, limit: int, each_transaction: bool = False
    ) -> Generator[list[Versioned], None, None]:
        """The changes in portions to fold one after the other, each at most `limit`; `count` counts
        them. `each_transaction`: see Cutter. Raises UnsupportedChange, ApplyError.
        """
        cutter = replace(self.cutter(versions, limit=limit), each_transaction=each_transaction)
        return portions(self.tables(count, limit=limit), cutter, limit=limit)

    def cutter(self, versions: Sequence[TableSchema], *, limit: int) -> Cutter:
        """How to cut the window, keys that must stay together found by a pass over the key columns.
        Raises UnsupportedChange when those are too many.
        """
        plain = cutter_for(versions)
        return cutter_for(versions, self._groups(plain, limit=limit)) if versions[-1].key_columns else plain

    def _groups(self, cutter: Cutter, *, limit: int) -> Groups:
        links = Links()
        for segment in self.segments:
            for old, new in self.moves(segment, cutter):
                links.add(old, new)
                require_few(links, limit=limit)
        return links.groups()

    def moves(self, segment: Segment, cutter: Cutter) -> Iterator[tuple[Hashes, Hashes]]:
        """Old and new hash of the changes of `segment` whose keys must stay together."""
        if not segment.key_changes or not sum(segment.unchanged.values()):
            return
        version = self.schemas[segment.schema_version]
        projection = Projection(version, self.target or version)
        names = [column.name for column in cutter.columns]
        wanted = [*names, envelope.OP, envelope.OLD, envelope.UNCHANGED, envelope.SPECIAL, envelope.OLD_SPECIAL]
        for rows in self._rows(segment, projection.stored(wanted)):
            yield cutter.moves(projection.of(rows))

    def _has_rows(self, segment: Segment) -> bool:
        if segment.body is None and self.after_lsn < segment.first_lsn and segment.last_lsn <= self.until_lsn:
            return segment.rows > 0
        return next(self._rows(segment, ()), None) is not None


def only_inserts(segments: Iterable[Segment]) -> bool:
    """Whether every change is an inserted row."""
    return all(
        not sum(segment.unchanged.values())
        and not any(count for op, count in segment.ops.items() if op != envelope.OP_INSERT)
        for segment in segments
    )


def require_few(links: Links, *, limit: int) -> None:
    """Raises UnsupportedChange when finding the groups of `links` takes more than `limit` bytes."""
    if links.count * _LINK_COST > limit:
        raise UnsupportedChange(
            f"one entry moves more than {links.count} rows to other keys without sending all their values",
            hint="raise apply.max_memory, or resync the table",
        )


def checked_bytes(store: ObjectStore, segment: Segment) -> bytes:
    """The segment's bytes. Raises ManifestCorrupt when they are not what the manifest says."""
    try:
        data = store.get(segment.key)
    except ObjectMissing as error:
        raise ManifestCorrupt(
            f"the segment {segment.key} is missing",
            hint="look for a life-cycle rule that deletes objects, then resync the table",
        ) from error
    if len(data) != segment.bytes or hashlib.sha256(data).hexdigest() != segment.sha256:
        raise ManifestCorrupt(
            f"the segment {segment.key} is not the one that the manifest describes",
            hint="restore the object, or resync the table",
        )
    return data


def read_rows(
    store: ObjectStore,
    segment: Segment,
    *,
    after_lsn: int = 0,
    until_lsn: int = NEWEST,
    names: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """The segment's changes that exist and whose commit ended after `after_lsn` and not after `until_lsn`, LSN
    and TS filled in, row group by row group: never empty tables.

    With `names` only these columns and those that the choice of rows needs.
    """
    file = pq.ParquetFile(pa.BufferReader(checked_bytes(store, segment)))
    if file.metadata.num_rows != segment.rows:
        raise ManifestCorrupt(
            f"the segment {segment.key} has {file.metadata.num_rows} rows, the manifest says {segment.rows}"
        )
    wanted = None if names is None else list(dict.fromkeys((*names, envelope.LSN, envelope.TS, envelope.XID)))
    for group in range(file.num_row_groups):
        rows = _existing(file.read_row_group(group, columns=wanted), segment, after_lsn=after_lsn, until_lsn=until_lsn)
        if len(rows):
            yield rows


def _existing(rows: pa.Table, segment: Segment, *, after_lsn: int, until_lsn: int) -> pa.Table:
    if segment.body is not None:
        rows = committed(rows, segment)
    if rows[envelope.LSN].null_count:
        raise ManifestCorrupt(f"the segment {segment.key} has changes without a commit LSN")
    if after_lsn < segment.first_lsn and segment.last_lsn <= until_lsn and segment.body is None:
        return rows
    lsns = rows[envelope.LSN]
    return rows.filter(pc.and_(pc.greater(lsns, after_lsn), pc.less_equal(lsns, until_lsn)))


def committed(rows: pa.Table, segment: Segment) -> pa.Table:
    """The rows of a body that exist, with what its transaction's commit supplied."""
    body = segment.body
    assert body is not None
    if body.aborted_xids:
        rows = rows.filter(pa.array(~_among(rows[envelope.XID].to_numpy(), body.aborted_xids)))
    count = len(rows)
    values = {
        envelope.LSN: pa.array([body.end_lsn], pa.int64()),
        envelope.TS: pa.array([body.commit_time_us], pa.int64()).cast(_TS),
    }
    for name, value in values.items():
        rows = rows.set_column(
            rows.column_names.index(name), name, value.take(pa.nulls(count, pa.int32()).fill_null(0))
        )
    return rows


def _among(xids: npt.NDArray[np.int64], chosen: XidIntervals) -> npt.NDArray[np.bool_]:
    """Which of `xids` are in `chosen`, which is not empty."""
    firsts, lasts = np.frombuffer(chosen.firsts, np.uint32), np.frombuffer(chosen.lasts, np.uint32)
    at = np.searchsorted(firsts, xids, side="right") - 1
    among: npt.NDArray[np.bool_] = (at >= 0) & (xids <= lasts[at])
    return among


def unite(tables: Iterable[tuple[pa.Table, TableSchema]], schema: TableSchema, *, defaults: bool = True) -> pa.Table:
    """Changes of several schema versions, projected onto the newest, as changes of it: rows and old rows from before a
    column have its default, or NULL without `defaults`. When whole old rows began to
    be sent on the way, OLD_WHOLE says which changes have them.
    """
    parts = list(tables)
    united = [_as_version(rows, version, schema, defaults=defaults) for rows, version in parts]
    if schema.replica_identity == "f" and any(version.replica_identity != "f" for _, version in parts):
        flags = [_repeated(pa.scalar(version.replica_identity == "f"), len(rows)) for rows, version in parts]
        united = [rows.append_column(OLD_WHOLE, flag) for rows, flag in zip(united, flags, strict=True)]
    return pa.concat_tables(united, promote_options="default").combine_chunks()


def _as_version(rows: pa.Table, version: TableSchema, schema: TableSchema, *, defaults: bool) -> pa.Table:
    added = [
        column if defaults else replace(column, missing=None)
        for column in schema.columns
        if version.column(column.name) is None
    ]
    for column in added:
        value, text = missing_value(column)
        rows = rows.append_column(column.name, _repeated(value, len(rows)))
        if text is not None:
            rows = _marked(
                rows, envelope.SPECIAL, {column.name: text}, where=_repeated(pa.scalar(value=True), len(rows))
            )
    if envelope.OLD in rows.column_names:
        rows = _with_identity(_with_older(rows, [column for column in added if column.identity]), schema)
    ordered = [column.name for column in schema.columns]
    return rows.select([*ordered, *(name for name in rows.column_names if envelope.is_reserved(name))])


def _with_older(rows: pa.Table, added: Sequence[ColumnSchema]) -> pa.Table:
    """Whole old rows get the columns that came after them, as the rows do."""
    if not added:
        return rows
    old = whole(rows[envelope.OLD])
    fields = {field.name: pc.struct_field(old, [field.name]) for field in old.type}
    for column in added:
        value, text = missing_value(column)
        fields[column.name] = _repeated(value, len(rows))
        if text is not None:
            rows = _marked(rows, envelope.OLD_SPECIAL, {column.name: text}, where=old.is_valid())
    filled = pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=pc.invert(old.is_valid()))
    return rows.set_column(rows.column_names.index(envelope.OLD), envelope.OLD, filled)


def _with_identity(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Old rows with the identity columns of `schema` first, in their order: the structure of a lake table is filled by
    place. What fewer columns had identified before lacks values of the others.
    """
    old = whole(rows[envelope.OLD])
    present, wanted = [field.name for field in old.type], [column.name for column in schema.identity_columns]
    if not wanted or present[: len(wanted)] == wanted:
        return rows
    fields = {
        column.name: pc.struct_field(old, [column.name])
        if column.name in present
        else pa.nulls(len(old), arrow_type(column.lake.sql))
        for column in schema.identity_columns
    }
    fields |= {name: pc.struct_field(old, [name]) for name in present if name not in fields}
    filled = pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=pc.invert(old.is_valid()))
    return rows.set_column(rows.column_names.index(envelope.OLD), envelope.OLD, filled)


def _marked(rows: pa.Table, name: str, marks: dict[str, str], *, where: pa.Array) -> pa.Table:
    present = zip(rows[name].to_pylist(), where.to_pylist(), strict=True)
    marked = [[*(before or []), *marks.items()] if here else before for before, here in present]
    return rows.set_column(rows.column_names.index(name), name, pa.array(marked, ARROW_MAP))


def _repeated(value: pa.Scalar, count: int) -> pa.Array:
    return pa.repeat(value, count) if count else pa.nulls(0, value.type)


def snapshot_tables(store: ObjectStore, segments: Iterable[Segment], version: TableSchema) -> Iterator[pa.Table]:
    """The rows of `segments`, which have the schema version `version`, with the columns that the lake carries.
    Raises ManifestCorrupt, StoreError.
    """
    carried = Projection(version, version.carried)
    for segment in segments:
        yield from map(carried.of, read_rows(store, segment))


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The rows of `segments` in `store`, which have the schema version `version`, of a snapshot taken at `lsn`."""

    store: ObjectStore
    segments: Sequence[Segment]
    version: TableSchema
    lsn: int

    def read_within(self, limit: int) -> pa.Table | None:
        """All of them, or None when they take more than `limit` bytes. Raises ManifestCorrupt, StoreError."""
        if sum(segment.bytes for segment in self.segments) > limit:
            return None
        tables: list[pa.Table] = []
        size = 0
        for rows in snapshot_tables(self.store, self.segments, self.version):
            size += rows.nbytes
            if size > limit:
                return None
            tables.append(self._stamped(rows))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def _stamped(self, rows: pa.Table) -> pa.Table:
        place = rows.column_names.index(envelope.LSN)
        return rows.set_column(place, envelope.LSN, pa.repeat(pa.scalar(self.lsn, pa.int64()), len(rows)))
