"""Which keys the changes of stored segments are about."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.store.base import ObjectStore


def keys_in(store: ObjectStore, segments: Sequence[Segment], schemas: Mapping[int, TableSchema]) -> set[str]:
    """The keys before and after each change, in a form that is equal for equal ones."""
    found: set[str] = set()
    for segment in segments:
        table = pq.read_table(io.BytesIO(store.get(segment.key)))
        names = [column.name for column in schemas[segment.schema_version].key_columns]
        # A row that goes has no key behind the change: taken for one, it would be that of all others that go.
        stays = table.filter(pc.is_in(table[envelope.OP], pa.array([envelope.OP_INSERT, envelope.OP_UPDATE])))
        found |= _spelled(stays, names, stays[envelope.SPECIAL])
        old = table[envelope.OLD].combine_chunks()
        held = old.filter(old.is_valid())
        if len(held):
            columns = pa.table({name: held.field(name) for name in names})
            found |= _spelled(columns, names, table[envelope.OLD_SPECIAL].combine_chunks().filter(old.is_valid()))
    return found


def truncates(segments: Sequence[Segment]) -> bool:
    """Whether one of them has a TRUNCATE, which is about every key."""
    return any(segment.ops.get(envelope.OP_TRUNCATE) for segment in segments)


def _spelled(table: pa.Table, names: Sequence[str], special: Any) -> set[str]:
    columns = [[_equal(value) for value in table[name].to_pylist()] for name in names]
    marks = special.to_pylist() if special.null_count != len(special) else [None] * len(special)
    return {
        repr((values, sorted((name, text) for name, text in mark or () if name in names)))
        for values, mark in zip(zip(*columns, strict=True), marks, strict=True)
    }


def _equal(value: Any) -> Any:
    """Zero has two prints, and is one key."""
    if isinstance(value, list):
        return [_equal(one) for one in value]
    return value + 0.0 if isinstance(value, float) else value
