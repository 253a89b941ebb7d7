"""Rows as they were walked, to one Arrow batch of a table's columns and the envelope.

Invariant: every value is in its column exactly, or its column's attnum is in UNCHANGED, or its text
is in SPECIAL (OLD_SPECIAL for OLD); anything else raises. Columns are decoded one after the other,
all rows at once; values are never touched one by one and never named in an error. (PostgreSQL:
Logical Replication Message Formats, TupleData.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.column_values import NO_KEYS, HashKeys
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.xids import XidIntervals
from sluice.errors import DecodeError, UnsupportedChange
from sluice.ingest.encode.column_rules import ruled
from sluice.ingest.encode.marks import SPECIAL_TYPE, UNCHANGED_TYPE, special_column, unchanged_column
from sluice.ingest.encode.stats import KeyRange, SegmentStats, count_ops, differs, key_range
from sluice.ingest.encode.types.families import arrow_type, binary_as_text, read, read_binary, require_binary_form
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Mask, Texts
from sluice.protocol.buffers import LARGE_BYTES
from sluice.protocol.tuples import FieldVector, RowColumns

_INSERT, _UPDATE, _DELETE = b"IUD"
_OLD_FULL = ord("O")
_TEXT, _NULL, _UNKNOWN, _BINARY = b"tnub"

_OPS = (envelope.OP_INSERT, envelope.OP_UPDATE, envelope.OP_DELETE, envelope.OP_TRUNCATE)
_OP_CODES = np.zeros(256, np.int8)
_OP_CODES[[_INSERT, _UPDATE, _DELETE]] = (0, 1, 2)
_TRUNCATE_CODE = np.array([3], np.int8)

_TIME = pa.timestamp("us", "UTC")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of one table, written in `schema` and ready for its segments only; `batch` has its
    `segment_schema`. `nbytes` is what it holds in memory.
    """

    schema: TableSchema
    batch: pa.RecordBatch
    stats: SegmentStats
    nbytes: int

    @property
    def large(self) -> bool:
        """Whether a single value takes more than LARGE_BYTES: such rows are written by themselves,
        in the least memory.
        """
        return self.nbytes > LARGE_BYTES and any(map(is_large, self.batch.columns))

    def with_commit(self, *, lsn: int, commit_time_us: int) -> "EncodedRows":
        """The same rows, with LSN and time filled in where they were not known."""
        batch = self.batch
        for name, value in (
            (envelope.LSN, pa.scalar(lsn, pa.int64())),
            (envelope.TS, pa.scalar(commit_time_us, pa.int64()).cast(_TIME)),
        ):
            position = batch.schema.get_field_index(name)
            batch = batch.set_column(
                position, batch.schema.field(position), pc.fill_null(batch.column(position), value)
            )
        return EncodedRows(self.schema, batch, self.stats.with_commit(lsn), batch.nbytes)

    def cleared(self, name: str, *, from_ordinal: int) -> "EncodedRows":
        """The same rows, with the boolean column `name` false in those whose ordinal is
        `from_ordinal` or more.
        """
        batch = self.batch
        position = batch.schema.get_field_index(name)
        left = pc.and_(batch.column(position), pc.less(batch.column(envelope.ORDINAL), from_ordinal))
        return replace(self, batch=batch.set_column(position, batch.schema.field(position), left))

    def touched_by(self, xids: XidIntervals) -> bool:
        """Whether a row belongs to one of the (sub)transactions `xids`."""
        return bool(among(self.batch.column(envelope.XID).to_numpy(), xids).any())


@dataclass(slots=True)
class _Side:
    """What the new or the old values of some rows came to: typed arrays by column name, and what
    was special.
    """

    arrays: dict[str, pa.Array] = field(default_factory=dict)
    special: list[tuple[str, Texts, Mask]] = field(default_factory=list)

    def add(self, column: ColumnSchema, values: "_Values") -> None:
        reading: Reading = (
            read_binary(values.texts, column.binary_form, column.lake)
            if values.binary
            else read(values.texts, column.lake)
        )
        self.arrays[column.name] = reading.array
        if reading.special is not None:
            self.special.append((column.name, reading.texts or values.texts, reading.special))


@dataclass(frozen=True, slots=True)
class _Values:
    """One column's values, as text or in the binary form of its type."""

    texts: Texts
    binary: bool = False


def segment_schema(schema: TableSchema) -> pa.Schema:
    """The columns of this table's segments: its own under their source names with attnum as Parquet
    field id, then the envelope.

    A table without identity columns has no OLD: the server never sends it an old row, and Parquet
    holds no struct without fields.
    """
    clash = next((column for column in schema.columns if envelope.is_reserved(column.name)), None)
    if clash is not None:
        raise UnsupportedChange(
            f"{_where(schema, clash)}: this column's name is reserved for Sluice or Delta",
            hint="rename the column or leave it out",
        )
    own = [_own_field(column) for column in schema.columns]
    kinds = {
        envelope.OP: pa.string(),
        envelope.LSN: pa.int64(),
        envelope.TS: _TIME,
        envelope.ORDINAL: pa.int64(),
        envelope.XID: pa.int64(),
        envelope.UNCHANGED: UNCHANGED_TYPE,
        envelope.OLD: pa.struct(_old_fields(schema)),
        envelope.SPECIAL: SPECIAL_TYPE,
        envelope.OLD_SPECIAL: SPECIAL_TYPE,
    }
    names = [name for name in envelope.SEGMENT_ENVELOPE if name != envelope.OLD or schema.identity_columns]
    return pa.schema([*own, *(pa.field(name, kinds[name]) for name in names)])


def encode_rows(
    rows: RowColumns,
    schema: TableSchema,
    *,
    ordinal: Numbers,
    xid: Numbers,
    lsn: Numbers | None,
    commit_time_us: Numbers | None,
    keys: HashKeys = NO_KEYS,
) -> EncodedRows:
    """The rows in their order, with what is known of their transactions; `lsn` and `commit_time_us`
    are None while those are open. `keys` are those of column rules.

    Raises DecodeError for values that the columns' types never print, UnsupportedChange for a value
    that cannot be carried at all.
    """
    if len(rows.new) != len(schema.columns):
        raise DecodeError(
            f"{schema.qualified_name}: rows have {len(rows.new)} columns, schema version "
            f"{schema.version} has {len(schema.columns)}"
        )
    codes = _OP_CODES[rows.op]
    old_values = _old_values(rows, schema, keys)
    new_side, old_side = _Side(), _Side()
    new_values: dict[str, _Values] = {}
    unchanged: list[tuple[ColumnSchema, Mask]] = []
    for position, column in enumerate(schema.columns):
        values, absent = _new_values(rows, position, column, schema, keys)
        new_values[column.name] = values
        new_side.add(column, values)
        if absent is not None:
            unchanged.append((column, absent))
    for column in schema.identity_columns if old_values else ():
        old_side.add(column, old_values[column.name])
    ranges, unranged = _key_ranges(rows, schema, new_side, old_side, unchanged)
    stats = SegmentStats(
        rows=len(codes),
        ops=count_ops(codes, _OPS),
        unchanged={str(column.attnum): int(mask.sum()) for column, mask in unchanged},
        key_changes=_count_key_changes(rows, schema, new_values, old_values),
        key_ranges=ranges,
        unranged=unranged,
        first_lsn=0 if lsn is None or not len(lsn) else int(lsn.min()),
        last_lsn=0 if lsn is None or not len(lsn) else int(lsn.max()),
    )
    arrays = new_side.arrays | {
        envelope.OP: _op_column(codes),
        envelope.LSN: _numbers(lsn, len(codes)),
        envelope.TS: _numbers(commit_time_us, len(codes)).view(_TIME),
        envelope.ORDINAL: pa.array(ordinal, pa.int64()),
        envelope.XID: pa.array(xid, pa.int64()),
        envelope.UNCHANGED: unchanged_column(len(codes), [(column.attnum, mask) for column, mask in unchanged]),
        envelope.SPECIAL: special_column(len(codes), new_side.special),
        envelope.OLD_SPECIAL: special_column(len(codes), old_side.special),
    }
    if schema.identity_columns:
        arrays[envelope.OLD] = _old_column(rows, schema, old_side)
    return _encoded(schema, arrays, stats)


def encode_values(
    schema: TableSchema,
    columns: Mapping[str, Sequence[object]],
    *,
    ordinal: Numbers,
    xid: Numbers,
    lsn: Numbers | None,
    commit_time_us: Numbers | None,
) -> EncodedRows:
    """Inserts of plain values, one sequence for each column: for rows of tables that are ours and
    have no key.
    """
    target = segment_schema(schema)
    count = len(ordinal)
    arrays = {name: pa.nulls(count, target.field(name).type) for name in target.names}
    arrays |= {name: pa.array(values, target.field(name).type) for name, values in columns.items()}
    arrays |= {
        envelope.OP: _op_column(np.zeros(count, np.int8)),
        envelope.LSN: _numbers(lsn, count),
        envelope.TS: _numbers(commit_time_us, count).view(_TIME),
        envelope.ORDINAL: pa.array(ordinal, pa.int64()),
        envelope.XID: pa.array(xid, pa.int64()),
    }
    known = (0, 0) if lsn is None else (int(lsn.min()), int(lsn.max()))
    return _encoded(
        schema, arrays, SegmentStats(count, {envelope.OP_INSERT: count}, first_lsn=known[0], last_lsn=known[1])
    )


def encode_truncate(
    schema: TableSchema, *, ordinal: int, xid: int, lsn: int | None, commit_time_us: int | None
) -> EncodedRows:
    """One row with operation `t` and no values: all rows before it in (LSN, ordinal) order are
    gone.
    """
    target = segment_schema(schema)
    arrays = {name: pa.nulls(1, target.field(name).type) for name in target.names}
    arrays |= {
        envelope.OP: _op_column(_TRUNCATE_CODE),
        envelope.LSN: pa.array([lsn], pa.int64()),
        envelope.TS: pa.array([commit_time_us], pa.int64()).view(_TIME),
        envelope.ORDINAL: pa.array([ordinal], pa.int64()),
        envelope.XID: pa.array([xid], pa.int64()),
    }
    return _encoded(schema, arrays, SegmentStats(1, {envelope.OP_TRUNCATE: 1}, first_lsn=lsn or 0, last_lsn=lsn or 0))


def _own_field(column: ColumnSchema) -> pa.Field:
    metadata = {"PARQUET:field_id": str(column.attnum)} if column.attnum > 0 else None
    return pa.field(column.name, arrow_type(column.lake), metadata=metadata)


def _old_fields(schema: TableSchema) -> list[pa.Field]:
    return [pa.field(column.name, arrow_type(column.lake)) for column in schema.identity_columns]


def _encoded(schema: TableSchema, arrays: dict[str, pa.Array], stats: SegmentStats) -> EncodedRows:
    target = segment_schema(schema)
    batch = pa.RecordBatch.from_arrays([arrays[name] for name in target.names], schema=target)
    return EncodedRows(schema, batch, stats, batch.nbytes)


def is_large(column: pa.Array) -> bool:
    """Whether a value of the column, or one within its values, takes more than LARGE_BYTES."""
    return _longest(column) > LARGE_BYTES


def _longest(column: pa.Array) -> int:
    """Bytes of the longest text in a column, also of those within structs, lists and maps; 0 for
    other types.
    """
    if pa.types.is_struct(column.type):
        return max((_longest(column.field(number)) for number in range(column.type.num_fields)), default=0)
    if pa.types.is_map(column.type):
        return _longest(column.items)
    if pa.types.is_list(column.type):
        return _longest(column.values)
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return 0
    return pc.max(pc.binary_length(column)).as_py() or 0


def among(xid: Numbers, xids: XidIntervals) -> Mask:
    """Which elements of `xid` are in the set `xids`."""
    if not xids:
        return np.zeros(len(xid), np.bool_)
    at = np.searchsorted(np.frombuffer(xids.firsts, np.uint32), xid, "right") - 1
    found: Mask = (at >= 0) & (xid <= np.frombuffer(xids.lasts, np.uint32)[at])
    return found


def _where(schema: TableSchema, column: ColumnSchema) -> str:
    return f"{schema.qualified_name}.{column.name}"


def _sent(rows: RowColumns, vector: FieldVector, where: str) -> tuple[Texts, int, bool]:
    """The column's values as bytes, whether these are text or binary, and whether it has fields
    that were not sent.
    """
    present = vector.kind == _TEXT
    # Without old rows no value is read twice: keys are not compared, and no new value is taken from an old one.
    texts = Texts(rows.table.raw, vector.start, vector.length, present, where, read_once=rows.old is None)
    if texts.complete:
        return texts, _TEXT, False
    binary = vector.kind == _BINARY
    if binary.all():
        return replace(texts, present=binary), _BINARY, False
    others = ~present & (vector.kind != _NULL)
    if not others.any():
        return texts, _TEXT, False
    if not binary.any():
        return texts, _TEXT, True
    if present.any():
        raise DecodeError(f"{where}: the server sent values of this column both as text and in binary form")
    return replace(texts, present=binary), _BINARY, bool(np.any(vector.kind == _UNKNOWN))


def _values(texts: Texts, kind: int, column: ColumnSchema, keys: HashKeys) -> _Values:
    if column.rule is not None:
        return _Values(ruled(texts, column.rule, keys, binary_form=column.binary_form if kind == _BINARY else None))
    if kind == _TEXT:
        return _Values(texts)
    require_binary_form(column.binary_form, texts.where)
    plain = binary_as_text(texts, column.binary_form)
    return _Values(texts, binary=True) if plain is None else _Values(plain)


def _new_values(
    rows: RowColumns, position: int, column: ColumnSchema, schema: TableSchema, keys: HashKeys
) -> tuple[_Values, Mask | None]:
    """The new values, and which rows were sent without one although it is not NULL. What the old
    row still holds is taken from there.
    """
    where = _where(schema, column)
    vector = rows.new[position]
    texts, kind, some_unknown = _sent(rows, vector, where)
    if not some_unknown:
        return _values(texts, kind, column, keys), None
    unknown = vector.kind == _UNKNOWN
    if rows.old is not None:
        old = rows.old[position]
        stated = (
            unknown & ((old.kind == _TEXT) | (old.kind == _BINARY)) & ((rows.old_kind == _OLD_FULL) | column.identity)
        )
        if stated.any():
            kind = _one_kind(np.concatenate((old.kind[stated], vector.kind[texts.present])), where)
        start, length = np.where(stated, old.start, texts.start), np.where(stated, old.length, texts.length)
        texts = Texts(texts.raw, start, length, texts.present | stated, where)
        unknown &= ~stated
    values = _values(texts, kind, column, keys)
    if not unknown.any():
        return values, None
    if np.any(unknown & (rows.op == _INSERT)):
        raise UnsupportedChange(
            f"{where}: an update moved a row into the publication's row filter, and was sent without this value; "
            "REPLICA IDENTITY FULL sends it"
        )
    if sum(other.attnum == column.attnum for other in schema.columns) > 1:
        raise UnsupportedChange(
            f"{where}: a value was not sent, and the column's number no longer identifies it",
            hint="several columns of this table were dropped while changes were still on their way; the "
            "table must be resynced",
        )
    return values, unknown


def _one_kind(kinds: npt.NDArray[np.uint8], where: str) -> int:
    if np.any(kinds != kinds[0]):
        raise DecodeError(f"{where}: the server sent values of this column both as text and in binary form")
    return int(kinds[0])


def _old_values(rows: RowColumns, schema: TableSchema, keys: HashKeys) -> dict[str, _Values]:
    """The old values of the identity columns by name; empty when no row has any."""
    found: dict[str, _Values] = {}
    if rows.old is None:
        return found
    for column, vector in zip(schema.columns, rows.old, strict=True):
        if not column.identity:
            continue
        texts, kind, some_unknown = _sent(rows, vector, _where(schema, column))
        if some_unknown:
            raise UnsupportedChange(
                f"{texts.where}: the server sent an old row without the value of this identity column",
                hint="resync the table",
            )
        found[column.name] = _values(texts, kind, column, keys)
    return found


def _old_column(rows: RowColumns, schema: TableSchema, side: _Side) -> pa.Array:
    fields = _old_fields(schema)
    if not side.arrays:
        return pa.nulls(len(rows.op), pa.struct(fields))
    absent = pa.array(rows.old_kind == 0)
    return pa.StructArray.from_arrays(
        [side.arrays[column.name] for column in schema.identity_columns], fields=fields, mask=absent
    )


def _count_key_changes(rows: RowColumns, schema: TableSchema, new: dict[str, _Values], old: dict[str, _Values]) -> int:
    """Updates whose old row has another key than the new one, compared byte by byte: a collation
    may call different bytes equal.
    """
    compared = [column.name for column in schema.key_columns if column.name in old]
    chosen = np.flatnonzero((rows.op == _UPDATE) & (rows.old_kind != 0))
    if not compared or not len(chosen):
        return 0
    changed: Sequence[Mask] = [differs(new[name].texts.rows(chosen), old[name].texts.rows(chosen)) for name in compared]
    return int(np.logical_or.reduce(changed).sum())


def _key_ranges(
    rows: RowColumns, schema: TableSchema, new: _Side, old: _Side, unchanged: list[tuple[ColumnSchema, Mask]]
) -> tuple[dict[str, KeyRange], frozenset[str]]:
    """Ranges of the key columns that have one, and the names of those that hold keys but have none."""
    ranges: dict[str, KeyRange] = {}
    without: set[str] = set()
    for column in schema.key_columns:
        values = [side.arrays[column.name] for side in (new, old) if column.name in side.arrays]
        found = key_range(column, values)
        unknown = any(other is column for other, _ in unchanged)
        if found is None or unknown or not _every_row_has_it(column.name, new, old, rows):
            without.add(column.name)
        else:
            ranges[column.name] = found
    return (ranges, frozenset(without)) if len(rows.op) else ({}, frozenset())


def _every_row_has_it(name: str, new: _Side, old: _Side, rows: RowColumns) -> bool:
    """Whether each row names a value of this key column: deletes in their old row, the others in
    the new and, where there is one, the old.
    """
    deletes = int(np.count_nonzero(rows.op == _DELETE))
    if int(new.arrays[name].null_count) > deletes:
        return False
    if name not in old.arrays:
        return deletes == 0
    return int(old.arrays[name].null_count) <= int(np.count_nonzero(rows.old_kind == 0))


def _op_column(codes: npt.NDArray[np.int8]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(_OPS, pa.string())).cast(pa.string())


def _numbers(values: Numbers | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if values is None else pa.array(values, pa.int64())
