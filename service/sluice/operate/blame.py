"""Every version of one row in the spool: what became of it, by which transaction, when, and what was said in it.

Invariant: what is shown is what the manifest has published. Bytes that it does not describe are refused, rows of
rolled-back subtransactions do not exist, and where the spool begins is stated: what was pruned is not shown and not
denied. Reads only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.contract.entries import Changes, Entry, Repair, Segment, Snapshot, digest
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import ManifestCorrupt, ObjectMissing, UsageError
from sluice.manifest.reader import read_entries
from sluice.manifest.values import TableState
from sluice.printable import counted
from sluice.store.base import ObjectStore
from sluice.tables.messages import TABLE_ID as MESSAGES

_INTEGER = re.compile("-?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class RowVersion:
    """What `entry` says of the row: `how` is insert, update, delete, truncate, snapshot or repair. `lsn` is the end of
    the commit (of a snapshot, the position it was read at), `at` its time, `origin` where the transaction came from.
    `values` are the columns as stored, empty for a row that went; `not_sent` names those that the server did not send
    because they did not change. `moved` says that the row came from or went to another key.
    """

    entry: int
    how: str
    lsn: int
    at: datetime | None
    xid: int | None
    origin: str
    values: dict[str, Any] = field(default_factory=dict)
    not_sent: tuple[str, ...] = ()
    moved: bool = False
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a row has in the key column `name`: `value`, or the mark `text` where the type cannot hold it."""

    name: str
    value: Any
    text: str

    def is_in(self, row: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
        """Whether `row` has it."""
        if self.name in marks:
            return marks[self.name] == self.text
        found = row[self.name]
        # NaN is a key like any other, and in Python it is not equal to itself.
        return self.value is not None and (found == self.value or (found != found and self.value != self.value))


def versions_of(
    store: ObjectStore, table: TableState, key: Sequence[str], *, after_seq: int, through_seq: int
) -> Iterator[RowVersion]:
    """The versions of the row with `key` (texts, in the order of its key) in the entries after `after_seq` and through
    `through_seq`, which left the table as `table` is; oldest first. Raises UsageError for a key of another form,
    ManifestCorrupt, FormatTooNew, StoreError.
    """
    if not table.schemas:
        raise UsageError(
            f"{table.schema_name}.{table.table_name} has no snapshot yet", hint="`sluice tables` says what it waits for"
        )
    newest = table.schemas[table.schema_version]
    columns = newest.key_columns
    if not columns:
        raise UsageError(
            f"{table.schema_name}.{table.table_name} has no key to find a row by",
            hint="query the lake to find its rows by their values",
        )
    if len(columns) != len(key):
        names = ", ".join(column.name for column in columns)
        raise UsageError(
            f"the key has {counted(len(columns), 'column')} ({names}), and "
            f"{counted(len(key), 'value was', 'values were')} given"
        )
    wanted = dict(zip((column.attnum for column in columns), key, strict=True))
    # Later ones may have rows in a shape that `table` does not know: they would be missing without a word.
    for entry, _ in read_entries(store, after_seq=after_seq, limit=max(0, through_seq - after_seq)):
        yield from _in_entry(store, entry, table, wanted)


def _in_entry(store: ObjectStore, entry: Entry, table: TableState, wanted: Mapping[int, str]) -> Iterator[RowVersion]:
    body = entry.body
    if not isinstance(body, Changes | Snapshot | Repair):
        return
    found: list[RowVersion] = []
    for segment in body.segments:
        schema = table.schemas.get(segment.schema_version)
        if segment.table_id == table.table_id and schema is not None and _may_hold(segment, schema, wanted):
            found += _in_segment(store, entry, segment, schema, wanted, newest=table.schemas[table.schema_version])
    said = _messages(store, body, {one.lsn for one in found}) if found and isinstance(body, Changes) else {}
    for one in sorted(found, key=lambda version: version.lsn):
        yield replace(one, messages=said.get(one.lsn, ()))


def _may_hold(segment: Segment, schema: TableSchema, wanted: Mapping[int, str]) -> bool:
    """False only where the entry says that no key of the segment is the wanted one."""
    if segment.ops.get(envelope.OP_TRUNCATE):
        return True
    for column in _keys(schema, wanted):
        low, high = segment.key_ranges.get(column.name, (None, None))
        text = wanted[column.attnum]
        is_number = isinstance(low, int) and isinstance(high, int) and _INTEGER.fullmatch(text)
        if is_number and not low <= int(text) <= high:
            return False
    return True


def _keys(schema: TableSchema, wanted: Mapping[int, str]) -> list[ColumnSchema]:
    """The columns of the wanted key, as this version has them: a column that was renamed is the same one."""
    return [column for column in schema.columns if column.attnum in wanted]


def _in_segment(
    store: ObjectStore,
    entry: Entry,
    segment: Segment,
    schema: TableSchema,
    wanted: Mapping[int, str],
    *,
    newest: TableSchema,
) -> Iterator[RowVersion]:
    keys = _keys(schema, wanted)
    if len(keys) != len(wanted):
        return
    rows = _rows(store, segment)
    types = {column.attnum: column.lake for column in newest.columns}
    values: list[_Wanted] | None = None
    try:
        values = [_as(rows.schema.field(column.name).type, wanted[column.attnum], column) for column in keys]
    except UsageError:
        if all(types[column.attnum] == column.lake for column in keys):
            raise
        # A value of today's type that the one of then does not have: nothing but a TRUNCATE is about it.
    for row in rows.to_pylist():
        marks, old_marks = (dict(row.get(name) or {}) for name in envelope.MARKS)
        now = values is not None and all(one.is_in(row, marks) for one in values)
        old = row.get(envelope.OLD)
        before = (
            old is not None
            and values is not None
            and all(one.name in old and one.is_in(old, old_marks) for one in values)
        )
        op = row[envelope.OP]
        if op == envelope.OP_TRUNCATE or (now and op != envelope.OP_DELETE) or before:
            yield _version(entry, segment, schema, row, gone=not now and op == envelope.OP_UPDATE)


def _version(entry: Entry, segment: Segment, schema: TableSchema, row: Mapping[str, Any], *, gone: bool) -> RowVersion:
    op, body, block = row[envelope.OP], segment.body, entry.body
    lsn = body.end_lsn if body is not None else row[envelope.LSN]
    time_us = body.commit_time_us if body is not None else None
    stored_at = row[envelope.TS]
    how = (
        "snapshot" if isinstance(block, Snapshot) else "repair" if isinstance(block, Repair) else envelope.OP_NAMES[op]
    )
    origin = block.commits.origins_by_lsn().get(lsn) if isinstance(block, Changes) else None
    special = dict(row.get(envelope.SPECIAL) or {})
    attnums = set(row.get(envelope.UNCHANGED) or ())
    columns = [column for column in schema.columns if column.attnum not in attnums]
    shown = {column.name: special.get(column.name, row.get(column.name)) for column in columns}
    went = gone or op in (envelope.OP_DELETE, envelope.OP_TRUNCATE)
    return RowVersion(
        entry.seq,
        how,
        int(lsn),
        datetime.fromtimestamp(time_us / 1e6, UTC) if time_us is not None else stored_at,
        body.xid if body is not None else row.get(envelope.XID),
        origin[0] if origin is not None else "",
        {} if went else shown,
        tuple(column.name for column in schema.columns if column.attnum in attnums),
        moved=gone or (how == "update" and _moved(row, schema)),
    )


def _moved(row: Mapping[str, Any], schema: TableSchema) -> bool:
    old = row.get(envelope.OLD)
    names = [column.name for column in schema.key_columns]
    return old is not None and any(name in old and old[name] != row.get(name) for name in names)


def _messages(store: ObjectStore, body: Changes, lsns: set[int]) -> dict[int, tuple[str, ...]]:
    """The logical messages of the transactions that ended at `lsns`: prefix, and content as text."""
    found: dict[int, tuple[str, ...]] = {}
    for segment in body.segments:
        if segment.table_id != MESSAGES:
            continue
        for row in _rows(store, segment).to_pylist():
            lsn = segment.body.end_lsn if segment.body is not None else row[envelope.LSN]
            if lsn in lsns and row["transactional"]:
                content = bytes(row["content"] or b"").decode("utf-8", "backslashreplace")
                found[lsn] = (*found.get(lsn, ()), f"{row['prefix']}: {content}")
    return found


def _rows(store: ObjectStore, segment: Segment) -> pa.Table:
    """The rows of the segment that exist. Raises ManifestCorrupt."""
    try:
        data = store.get(segment.key)
    except ObjectMissing as error:
        raise ManifestCorrupt(f"the segment {segment.key} is missing", hint="run `sluice spool verify`") from error
    if len(data) != segment.bytes or digest(data) != segment.sha256:
        raise ManifestCorrupt(f"the segment {segment.key} is not the one that the manifest describes")
    rows: pa.Table = pq.read_table(pa.BufferReader(data))
    body = segment.body
    if body is None or not body.aborted_xids:
        return rows
    kept = [xid not in body.aborted_xids for xid in rows[envelope.XID].to_pylist()]
    return rows.filter(pa.array(kept, pa.bool_()))


def _as(kind: pa.DataType, text: str, column: ColumnSchema) -> _Wanted:
    """What a row has in the column whose value PostgreSQL prints as `text`. Raises UsageError."""
    try:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return _Wanted(column.name, bytes.fromhex(text.removeprefix("\\x")), text)
        if pa.types.is_boolean(kind):
            text = {"t": "true", "f": "false"}.get(text, text)
        return _Wanted(column.name, pa.array([text], pa.string()).cast(kind)[0].as_py(), text)
    except (pa.ArrowException, ValueError):
        if column.lake.special:
            return _Wanted(column.name, None, text)
        raise UsageError(
            f"the key column {column.name} is {column.type_name}, and the given value is not", hint="give it as text"
        ) from None
