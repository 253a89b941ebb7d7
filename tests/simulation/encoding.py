"""Rows to segments without Arrow and Parquet, which is what most of the time of a history would go into.

The order of events is what the simulator is about; how values are encoded has tests of its own. So each row is
read by a few lines here, under the schema version that the product chose for it, and a segment is the list of
them. `fast` puts these functions in the place of the product's; without it a history runs with the product's, and
a test compares the two. What stays the product's: which rows come together, in which version, in which file, and
what an entry says of them.
"""

import hashlib
import io
import marshal
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_values import NO_KEYS, HashKeys
from sluice.contract.entries import Entry, Segment
from sluice.contract.schema import TableSchema
from sluice.contract.xids import XidIntervals
from sluice.errors import DecodeError
from sluice.ingest.encode import builder
from sluice.ingest.encode.rows import EncodedRows
from sluice.ingest.encode.segment import SegmentFile
from sluice.ingest.encode.stats import SegmentStats
from sluice.ingest.encode.undecoded import SentRows
from sluice.manifest import reader
from sluice.store.base import ObjectStore
from sluice.store.doorbell import Doorbell
from sluice.tables.catalog_diff import fingerprint
from tests.simulation.quick_values import quick_values, users_of

UNCHANGED = "\0unchanged"
"""In the place of a value that was not sent."""
Values = dict[int, str | None]
"""By attnum."""
Change = tuple[str, int, int, int, Values, Values | None]
"""Operation, commit end LSN, ordinal, xid, new values, values of the old row."""
_HEADER = 25
_ROW_BYTES = 100
_KNOWN = 500


class FastRows(EncodedRows):
    """Rows of one schema version, as a list."""

    changes: list[Change]

    def with_commit(self, *, lsn: int, commit_time_us: int) -> "FastRows":
        changes = [(op, known or lsn, ordinal, xid, new, old) for op, known, ordinal, xid, new, old in self.changes]
        return _rows(self.schema, changes)

    def touched_by(self, xids: XidIntervals) -> bool:
        return any(change[3] in xids for change in self.changes)


class FastSent(SentRows):
    """Frames that nobody has read: (frame or None for a TRUNCATE, ordinal, xid, whether in a stream)."""

    frames: list[tuple[bytes | None, int, int, bool]]

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def nbytes(self) -> int:
        return _ROW_BYTES * len(self.frames)

    @property
    def is_withheld(self) -> bool:
        return False

    def without(self, xids: XidIntervals) -> "FastSent":
        return _sent([one for one in self.frames if one[2] not in xids])

    def encoded(
        self, schema: TableSchema, *, lsn: int, commit_time_us: int, keys: HashKeys = NO_KEYS
    ) -> Iterator[EncodedRows]:
        changes = [
            ("t", lsn, ordinal, xid, {}, None) if frame is None else _read(frame, schema, lsn, ordinal, xid, streamed)
            for frame, ordinal, xid, streamed in self.frames
        ]
        yield _rows(schema, changes)


def _rows(schema: TableSchema, changes: list[Change]) -> FastRows:
    found = FastRows(schema, None, _stats(schema, changes), _ROW_BYTES * len(changes))
    object.__setattr__(found, "changes", changes)
    return found


def _sent(frames: list[tuple[bytes | None, int, int, bool]]) -> FastSent:
    found = FastSent(None)
    object.__setattr__(found, "frames", frames)
    return found


def _stats(schema: TableSchema, changes: list[Change]) -> SegmentStats:
    ops: dict[str, int] = {}
    unchanged: dict[str, int] = {}
    lsns = [change[1] for change in changes if change[1]]
    key_changes = 0
    keys = [column.attnum for column in schema.columns if column.key]
    for op, _, _, _, new, old in changes:
        ops[op] = ops.get(op, 0) + 1
        for attnum, value in new.items():
            if value == UNCHANGED:
                unchanged[str(attnum)] = unchanged.get(str(attnum), 0) + 1
        key_changes += op == "u" and old is not None and any(old.get(key) != new.get(key) for key in keys)
    return SegmentStats(len(changes), ops, unchanged, key_changes, {}, frozenset(), min(lsns, default=0),
                        max(lsns, default=0))  # fmt: skip


def _read(frame: bytes, schema: TableSchema, lsn: int, ordinal: int, xid: int, streamed: bool) -> Change:
    """A row message, of which the server and the product agree about the columns."""
    op = chr(frame[_HEADER])
    at = _HEADER + (9 if streamed else 5)
    old: Values | None = None
    new: Values = {}
    if op == "U" and frame[at : at + 1] in (b"K", b"O"):
        old, at = _tuple(frame, at + 1, schema)
        old = {column.attnum: old[column.attnum] for column in schema.columns if column.identity}
    if op == "D":
        old, at = _tuple(frame, at + 1, schema)
        old = {column.attnum: old[column.attnum] for column in schema.columns if column.identity}
    else:
        new, at = _tuple(frame, at + 1, schema)
        for attnum, value in new.items():
            if value == UNCHANGED and old is not None and old.get(attnum) is not None:
                new[attnum] = old[attnum]
    return op.lower(), lsn, ordinal, xid, new, old


def _tuple(frame: bytes, at: int, schema: TableSchema) -> tuple[Values, int]:
    (count,) = struct.unpack_from(">H", frame, at)
    if count != len(schema.columns):
        raise DecodeError(f"rows have {count} columns, schema version {schema.version} has {len(schema.columns)}")
    at += 2
    found: Values = {}
    for column in schema.columns:
        kind = frame[at]
        at += 1
        if kind == 0x74:
            (length,) = struct.unpack_from(">i", frame, at)
            found[column.attnum] = frame[at + 4 : at + 4 + length].decode()
            at += 4 + length
        else:
            found[column.attnum] = None if kind == 0x6E else UNCHANGED
    return found, at


def _walk(table: Any, rows: Any, width: int, *, in_stream: bool) -> Any:
    raw, start, end = table.raw, table.start, table.end
    return SimpleNamespace(
        frames=[bytes(raw[int(start[row]) : int(end[row])]) for row in rows], width=width, in_stream=in_stream
    )


def _encode_rows(
    rows: Any, schema: TableSchema, *, ordinal: Any, xid: Any, lsn: Any, commit_time_us: Any, keys: Any = None
) -> FastRows:
    count = len(rows.frames)
    lsns = [0] * count if lsn is None else lsn.tolist()
    return _rows(
        schema,
        [
            _read(frame, schema, at, number, own, rows.in_stream)
            for frame, at, number, own in zip(rows.frames, lsns, ordinal.tolist(), xid.tolist(), strict=True)
        ],
    )


def _encode_truncate(schema: TableSchema, *, ordinal: int, xid: int, lsn: int | None, commit_time_us: Any) -> FastRows:
    return _rows(schema, [("t", lsn or 0, ordinal, xid, {}, None)])


def _sent_rows(table: Any, rows: Any, *, ordinal: Any, xid: Any, in_stream: bool) -> FastSent:
    frames = _walk(table, rows, 0, in_stream=in_stream).frames
    return _sent(
        [(frame, at, own, in_stream) for frame, at, own in zip(frames, ordinal.tolist(), xid.tolist(), strict=True)]
    )


def _sent_truncate(*, ordinal: int, xid: int) -> FastSent:
    return _sent([(None, ordinal, xid, False)])


def _write_sent_file(parts: Iterable[FastSent]) -> SegmentFile:
    data = marshal.dumps([part.frames for part in parts])
    return SegmentFile(data, hashlib.sha256(data).hexdigest(), SegmentStats(0))


def _read_sent_file(data: bytes) -> Iterator[FastSent]:
    yield from map(_sent, marshal.loads(data))


class _Writer:
    """SegmentWriter's place."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._changes: list[Change] = []

    @property
    def nbytes(self) -> int:
        return _ROW_BYTES * len(self._changes)

    def append(self, rows: FastRows) -> None:
        if rows.schema.named(self.schema.schema_name, self.schema.table_name) != self.schema:
            raise AssertionError("rows of another schema version")
        self._changes += rows.changes

    def finish(self) -> SegmentFile:
        return file_of(self.schema, self._changes)


def _write_segment(schema: TableSchema, parts: Iterable[FastRows]) -> SegmentFile:
    return file_of(schema, [change for part in parts for change in part.changes])


def file_of(schema: TableSchema, changes: list[Change]) -> SegmentFile:
    data = marshal.dumps(changes)
    return SegmentFile(data, hashlib.sha256(data).hexdigest(), _stats(schema, changes))


def _one_by_one(call: Any, items: Iterable[Any], *, threads: int) -> Iterator[Any]:
    """`together`, in this thread."""
    return map(call, items)


class _KnownFingerprints:
    """Those of facts that are the same object: the model makes them once for each state of a table."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[TableFacts, str]] = {}
        self._make = fingerprint

    def of(self, facts: TableFacts) -> str:
        found = self._known.get(id(facts))
        if found is None:
            if len(self._known) > _KNOWN:
                self._known.clear()
            found = self._known[id(facts)] = facts, self._make(facts)
        return found[1]


class _KnownEntries:
    """Entries that were decoded before: ingest, the applier and the oracle all read the same ones."""

    def __init__(self) -> None:
        self._known: dict[bytes, Entry] = {}
        self._decode = Entry.decode

    def decode(self, data: bytes) -> Entry:
        found = self._known.get(data)
        if found is None:
            if len(self._known) > _KNOWN:
                self._known.clear()
            found = self._known[data] = self._decode(data)
        return found


@contextmanager
def fast() -> Iterator[None]:
    """Inside the block the builder encodes by the functions above, nothing starts a thread or rings at another process,
    and what is made again and again of equal values takes less time.
    """
    here = {
        "walk_rows": _walk,
        "stored_rows": lambda rows, _: rows,
        "encode_rows": _encode_rows,
        "encode_truncate": _encode_truncate,
        "sent_rows": _sent_rows,
        "sent_truncate": _sent_truncate,
        "write_sent_file": _write_sent_file,
        "read_sent_file": _read_sent_file,
        "write_segment": _write_segment,
        "SegmentWriter": _Writer,
    }
    with ExitStack() as stack:
        for name, function in here.items():
            stack.enter_context(patch.object(builder, name, function))
        stack.enter_context(patch.object(reader, "together", _one_by_one))
        stack.enter_context(patch.object(Entry, "decode", _KnownEntries().decode))
        stack.enter_context(patch.object(Doorbell, "ring", lambda _self, _number=0: None))
        known = _KnownFingerprints()
        for module in users_of("fingerprint", fingerprint):
            stack.enter_context(patch.object(module, "fingerprint", known.of))
        stack.enter_context(quick_values())
        yield


def changes_of(store: ObjectStore, segment: Segment, schema: TableSchema) -> list[Change]:
    """The changes of a segment that exist, with what the entry says of their transaction."""
    data = store.get(segment.key)
    if len(data) != segment.bytes or hashlib.sha256(data).hexdigest() != segment.sha256:
        raise AssertionError(f"{segment.key} is not what the manifest says")
    changes = _from_parquet(data, schema) if data[:4] == b"PAR1" else marshal.loads(data)
    body = segment.body
    if body is None:
        return changes
    return [
        (op, body.end_lsn, ordinal, xid, new, old)
        for op, _, ordinal, xid, new, old in changes
        if xid not in body.aborted_xids
    ]


def _from_parquet(data: bytes, schema: TableSchema) -> list[Change]:
    found: list[Change] = []
    for row in pq.read_table(io.BytesIO(data)).to_pylist():
        new: Values = {column.attnum: _text(row[column.name]) for column in schema.columns}
        for attnum in row["_sluice_unchanged"] or ():
            new[attnum] = UNCHANGED
        sent = row.get("_sluice_old")
        old = None if sent is None else {
            column.attnum: _text(sent[column.name]) for column in schema.columns if column.identity
        }  # fmt: skip
        op = row["_sluice_op"]
        found.append(
            (op, row["_sluice_lsn"], row["_sluice_ordinal"], row["_sluice_xid"], new if op in "iu" else {}, old)
        )
    return found


def _text(value: object) -> str | None:
    return None if value is None else str(value)
