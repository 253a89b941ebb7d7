"""Rows read again by their keys, as the changes of a repair."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_values import NO_KEYS, HashKeys
from sluice.contract.entries import REPAIR_ORDINAL
from sluice.contract.schema import TableSchema
from sluice.ingest.encode.rows import encode_rows
from sluice.ingest.encode.segment import SegmentFile, SegmentWriter
from sluice.ingest.snapshot.keyed_rows import KeyColumn, missing_keys, rows_of_keys
from sluice.ingest.snapshot.reader import SnapshotRaced, SnapshotSession, binary_columns, read_rows
from sluice.protocol.copy_rows import CopyRows, encode_copy
from sluice.protocol.tuples import FieldVector, RowColumns
from sluice.source.rule_sql import with_hash_keys
from sluice.source.sessions import KnownSource
from sluice.source.snapshot_export import HOLD_SECONDS, SnapshotHolder

_UPDATE, _DELETE, _OLD_KEY, _NULL = (ord(letter) for letter in "UDKn")

Key = tuple[str, ...]
"""Texts of the columns of a key, in the order of the schema."""


def read_again(
    options: KnownSource,
    schema: TableSchema,
    facts: TableFacts,
    holder: SnapshotHolder,
    wanted: Sequence[Key],
    *,
    behind: int = 0,
) -> SegmentFile:
    """The rows with the keys `wanted` as of the snapshot of `holder`, whole, and a removal of each key that
    has none there; as changes of a Repair, of which earlier files have `behind` at most. Raises what is wrong with
    the table.
    """
    named = {column.name: column for column in facts.columns}
    columns = [KeyColumn(named[column.name], column.rule) for column in schema.key_columns if column.name in named]
    if len(columns) != len(schema.key_columns):
        raise SnapshotRaced(f"{schema.qualified_name} no longer has the columns of its key")
    writer = SegmentWriter(schema)
    ordinal = itertools.count(REPAIR_ORDINAL + behind)
    reader = CopyRows(len(schema.columns), binary_columns(schema))
    keyed = with_hash_keys(options, schema.key_columns)
    session = SnapshotSession(keyed, holder.snapshot_name, hold_s=HOLD_SECONDS)
    with closing(session), session.locked([facts]) as wrong:
        if wrong:
            raise wrong[facts.oid]
        where = rows_of_keys(columns, wanted)
        for read in read_rows(session, schema=schema, facts=facts, where=where, accept_empty=True):
            rows = reader.feed(read.chunks, sizes=read.sizes)
            _append(writer, schema, rows, ordinal, lsn=holder.consistent_lsn, op=_UPDATE, keys=options.hash_keys)
        reader.close()
        gone = missing_keys(session.inside, facts, columns, wanted)
    if gone:
        places = [schema.columns.index(column) for column in schema.key_columns]
        full: list[list[str | None]] = []
        for key in gone:
            row: list[str | None] = [None] * len(schema.columns)
            for position, text in zip(places, key, strict=True):
                row[position] = text
            full.append(row)
        rows = CopyRows(len(schema.columns)).feed(encode_copy(full))
        # What is stored of the keys is given already.
        _append(writer, schema, rows, ordinal, lsn=holder.consistent_lsn, op=_DELETE, keys=None)
    return writer.finish()


def _append(
    writer: SegmentWriter,
    schema: TableSchema,
    rows: RowColumns,
    ordinal: Iterator[int],
    *,
    lsn: int,
    op: int,
    keys: HashKeys | None,
) -> None:
    """Without `keys` the values are as they are stored, and no rule is applied."""
    count = len(rows)
    if not count:
        return
    now_us = time.time_ns() // 1000
    if op == _DELETE:
        rows = replace(rows, old_kind=np.full(count, _OLD_KEY, np.uint8), old=rows.new, new=_nulls(rows.new))
    rows = replace(rows, op=np.full(count, op, np.uint8))
    shape = schema if keys is not None else _without_rules(schema)
    encoded = encode_rows(
        rows,
        shape,
        ordinal=np.array(list(itertools.islice(ordinal, count)), np.int64),
        xid=np.zeros(count, np.int64),
        lsn=np.full(count, lsn, np.int64),
        commit_time_us=np.full(count, now_us, np.int64),
        keys=keys or NO_KEYS,
    )
    writer.append(replace(encoded, schema=schema))


def _without_rules(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(column, rule=None) for column in schema.columns))


def _nulls(fields: tuple[FieldVector, ...]) -> tuple[FieldVector, ...]:
    return tuple(
        FieldVector(np.full(len(one.kind), _NULL, np.uint8), one.start, np.zeros(len(one.kind), np.int32))
        for one in fields
    )
