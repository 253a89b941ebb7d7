"""From a segment to batches of Arrow, in Spark's Python workers: the changes of one table in its own types, or those of
any table in a common form with the row as JSON.

Owns that a value which was not sent is never taken for NULL: its column is named in `_sluice_unsent`. Names of the
change columns are those of Delta's change data feed, as far as they mean the same. Needs Arrow and the store alone.
"""

import base64
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.row_identity import whole
from sluice_spark.lake.sql import quote
from sluice_spark.read.changes import ARROW_MAP, read_rows, unite
from sluice_spark.read.column_defaults import arrow_type
from sluice_spark.read.projection import Projection
from sluice_spark.spool import StorePrefix

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
UNSENT = "_sluice_unsent"
SNAPSHOT, REPAIR, STATE = "snapshot", "repair", "state"
_CHANGES = {
    envelope.OP_INSERT: "insert",
    envelope.OP_UPDATE: "update_postimage",
    envelope.OP_DELETE: "delete",
    envelope.OP_TRUNCATE: "truncate",
}
_BOTH = (
    "and changes from before are still to be read: one stream cannot have both; resync the table, then begin again "
    "with a new checkpoint, or begin behind them with startingPosition=latest"
)
_OF_CHANGE = (
    (CHANGE_TYPE, "string"),
    (COMMIT_VERSION, "bigint"),
    (COMMIT_TIMESTAMP, "timestamp"),
    (envelope.ORDINAL, "bigint"),
    (envelope.XID, "bigint"),
    (UNSENT, "array<string>"),
    (envelope.SPECIAL, "map<string,string>"),
)
_ANY = (
    ("schema", "string"),
    ("table", "string"),
    ("generation", "int"),
    *_OF_CHANGE[:-1],
    ("row", "string"),
    ("old", "string"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One segment for one task: rows of `version`, shown as those of `target`. Changes that ended up to `after_lsn` are
    in the snapshot. `how` is empty for changes, else what the rows are called, and then they are as of `as_of_lsn`.
    Without a segment it is what is `said` of the table with these `names`.
    """

    spool: StorePrefix
    segment: Segment | None
    version: TableSchema | None
    target: TableSchema | None
    generation: int | None
    after_lsn: int
    how: str = ""
    as_of_lsn: int = 0
    said: str = ""
    names: tuple[str, str] = ("", "")


def columns_of(schema: TableSchema) -> list[tuple[str, str]]:
    """The columns (name, Spark type) of the changes of one table."""
    own = [(column.name, column.lake.sql) for column in schema.carried.columns]
    identity = schema.carried.identity_columns
    old = ", ".join(f"{quote(column.name)}: {column.lake.sql}" for column in identity)
    more = [(envelope.OLD, f"struct<{old}>"), (envelope.OLD_SPECIAL, "map<string,string>")] if identity else []
    return [*own, *_OF_CHANGE, *more]


def columns_of_any() -> list[tuple[str, str]]:
    """The columns of the changes of all tables."""
    return list(_ANY)


def require_carried(version: TableSchema, target: TableSchema, *, moves: bool) -> None:
    """Raises UnsupportedChange unless changes of `version` can be shown in the columns of `target`, a later one. With
    `moves` rows among them come to other keys.
    """
    now = {column.attnum: column for column in target.carried.columns}
    for column in version.carried.columns:
        after = now.get(column.attnum)
        if after is None or after.type_oid != column.type_oid or after.lake != column.lake:
            became = "was dropped" if after is None else f"became {after.type_name}"
            raise UnsupportedChange(f"column {column.name!r} of {target.qualified_name} {became}, {_BOTH}")
    shown = {column.attnum for column in target.carried.identity_columns}
    lost = next((one for one in version.carried.identity_columns if one.attnum not in shown), None)
    if moves and version.replica_identity != "f" and lost is not None:
        raise UnsupportedChange(f"column {lost.name!r} of {target.qualified_name} is of its key no more, {_BOTH}")


def typed(part: Part) -> Iterator[pa.Table]:
    """The changes of `part` with the columns of its target. Raises ManifestCorrupt, StoreError."""
    assert part.segment is not None
    assert part.version is not None
    assert part.target is not None
    target = part.target.carried
    projection = Projection(part.version, target)
    for rows in read_rows(part.spool.open(), part.segment, after_lsn=0 if part.how else part.after_lsn):
        projection.require_whole(rows)
        own = projection.of(rows)
        united = unite([(own, projection.schema)], target, defaults=False)
        yield _shaped(united, part, target, _of_old(own, projection.schema, target))


def of_any(part: Part) -> Iterator[pa.Table]:
    """The same with the columns of any table."""
    if part.segment is None:
        yield _statement(part)
        return
    assert part.target is not None
    for rows in typed(part):
        yield _as_json(rows, part, part.target.carried)


def _statement(part: Part) -> pa.Table:
    values: dict[str, Any] = {
        "schema": part.names[0],
        "table": part.names[1],
        "generation": part.generation,
        CHANGE_TYPE: part.how,
        COMMIT_VERSION: part.as_of_lsn,
        "row": part.said,
    }
    return pa.table({name: pa.array([values.get(name)], arrow_type(kind)) for name, kind in _ANY})


def _of_old(rows: pa.Table, version: TableSchema, target: TableSchema) -> set[str]:
    """The columns of `target` whose values old rows among `rows`, which are of `version`, have: also those that came
    later than whole old rows.
    """
    sent = (
        {field.name for field in rows.schema.field(envelope.OLD).type} if envelope.OLD in rows.column_names else set()
    )
    if version.replica_identity == "f":
        sent |= {column.name for column in target.columns if version.column(column.name) is None}
    return sent


def _shaped(rows: pa.Table, part: Part, target: TableSchema, sent: set[str]) -> pa.Table:
    """`sent` are the columns whose values old rows have."""
    count = len(rows)
    ops = rows[envelope.OP].combine_chunks()
    is_delete = pc.equal(ops, envelope.OP_DELETE)
    old = whole(rows[envelope.OLD]) if envelope.OLD in rows.column_names else None
    of_old = {field.name: number for number, field in enumerate(old.type)} if old is not None else {}
    columns: dict[str, pa.Array] = {}
    for column in target.columns:
        values = _one(rows[column.name])
        if old is not None and column.name in of_old:
            before = pc.struct_field(old, [of_old[column.name]])
            values = pc.if_else(is_delete, before.cast(values.type), values)
        columns[column.name] = values
    special = _marks(rows, envelope.SPECIAL)
    if envelope.OLD_SPECIAL in rows.column_names:
        special = pa.array(
            [
                then if gone else now
                for gone, then, now in zip(
                    is_delete.to_pylist(),
                    _marks(rows, envelope.OLD_SPECIAL).to_pylist(),
                    special.to_pylist(),
                    strict=True,
                )
            ],
            ARROW_MAP,
        )
    lsns = pa.repeat(pa.scalar(part.as_of_lsn, pa.int64()), count) if part.how else _one(rows[envelope.LSN])
    columns |= {
        CHANGE_TYPE: _kinds(ops, part.how),
        COMMIT_VERSION: lsns,
        COMMIT_TIMESTAMP: _one(rows[envelope.TS]),
        envelope.ORDINAL: _one(rows[envelope.ORDINAL]),
        envelope.XID: pa.nulls(count, pa.int64()) if part.how else _one(rows[envelope.XID]),
        UNSENT: _unsent(rows, target, is_delete, sent),
        envelope.SPECIAL: special,
    }
    if target.identity_columns:
        fields = [pa.field(column.name, arrow_type(column.lake.sql)) for column in target.identity_columns]
        kept = [
            pc.struct_field(old, [of_old[field.name]]) if field.name in of_old else pa.nulls(count, field.type)
            for field in fields
        ]
        mask = old.is_null() if old is not None else pa.repeat(pa.scalar(value=True), count)
        columns[envelope.OLD] = pa.StructArray.from_arrays(kept, fields=fields, mask=mask)
        columns[envelope.OLD_SPECIAL] = _marks(rows, envelope.OLD_SPECIAL)
    return pa.table(columns)


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _marks(rows: pa.Table, name: str) -> pa.Array:
    return _one(rows[name]).cast(ARROW_MAP) if name in rows.column_names else pa.nulls(len(rows), ARROW_MAP)


def _kinds(ops: pa.Array, how: str) -> pa.Array:
    names = {**_CHANGES, envelope.OP_UPDATE: how} if how == REPAIR else _CHANGES
    if how == SNAPSHOT:
        return pa.repeat(pa.scalar(SNAPSHOT), len(ops))
    return pa.array([names[op] for op in ops.to_pylist()], pa.string())


def _unsent(rows: pa.Table, target: TableSchema, is_delete: pa.Array, of_old: Collection[str]) -> pa.Array:
    """Names of columns whose value is not known: not sent because it did not change, or of a row that went."""
    by_number = {column.attnum: column.name for column in target.columns}
    gone = [column.name for column in target.columns if column.name not in of_old] or None
    unchanged = rows[envelope.UNCHANGED].to_pylist() if envelope.UNCHANGED in rows.column_names else [None] * len(rows)
    found = [
        gone if deleted else [by_number[number] for number in numbers if number in by_number] if numbers else None
        for numbers, deleted in zip(unchanged, is_delete.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.list_(pa.string()))


def _as_json(rows: pa.Table, part: Part, target: TableSchema) -> pa.Table:
    count = len(rows)
    unsent = rows[UNSENT].to_pylist()
    names = [column.name for column in target.columns]
    marks = rows[envelope.SPECIAL].to_pylist()
    kinds = rows[CHANGE_TYPE].to_pylist()
    row = [
        None if kind == "truncate" else _text(values, unsent=hidden or (), marks=dict(found or ()))
        for kind, values, hidden, found in zip(kinds, rows.select(names).to_pylist(), unsent, marks, strict=True)
    ]
    old: list[str | None] = [None] * count
    if envelope.OLD in rows.column_names:
        marks = rows[envelope.OLD_SPECIAL].to_pylist()
        old = [
            None if values is None else _text(values, unsent=(), marks=dict(found or ()))
            for values, found in zip(rows[envelope.OLD].to_pylist(), marks, strict=True)
        ]
    columns = {
        "schema": pa.repeat(pa.scalar(target.schema_name), count),
        "table": pa.repeat(pa.scalar(target.table_name), count),
        "generation": pa.repeat(pa.scalar(part.generation, pa.int32()), count),
        **{name: rows[name] for name, _ in _OF_CHANGE[:-1]},
        "row": pa.array(row, pa.string()),
        "old": pa.array(old, pa.string()),
    }
    return pa.table(columns)


def _text(values: Mapping[str, Any], *, unsent: Any, marks: Mapping[str, str]) -> str:
    """A row as JSON: without the columns that were not sent, and with the exact text of marked values."""
    hidden = set(unsent)
    shown = {name: marks.get(name, value) for name, value in values.items() if name not in hidden}
    return json.dumps(_plain(shown), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """What JSON has not is text: numbers that it cannot hold exactly, times in ISO 8601, bytes in base64. Spark's own
    `from_json` reads each of them, and takes for NULL what it does not know: NaN and the infinities have the names that
    it knows, which are PostgreSQL's.
    """
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo is not None else value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
