"""The changes of a window without a key, as how many more or fewer there are of each distinct row afterwards.

Owns multiplicity: of three equal rows one delete leaves two. Which of several equal rows keeps its LSN and commit
time is not defined: they take the last change's. Pure.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import after_truncate, in_order, old_values, row_numbers, unchanged_flags
from sluice_spark.fold.row_identity import Numbers, whole


@dataclass(frozen=True, slots=True)
class Counted:
    """One row per distinct row whose number changed, and by how much. `replaces` says that nothing
    of the lake's rows remains.
    """

    rows: pa.Table
    net: Numbers
    replaces: bool


def count(rows: pa.Table, schema: TableSchema) -> Counted:
    """The net number of each distinct row in a window. Raises UnsupportedChange."""
    rows, replaces = after_truncate(in_order(rows))
    if unchanged_flags(rows, schema):
        raise UnsupportedChange(f"{schema.qualified_name}: a value was not sent although the identity is full")
    operation = rows[envelope.OP]
    adds = pc.is_in(operation, pa.array([envelope.OP_INSERT, envelope.OP_UPDATE])).to_numpy()
    removes = pc.is_in(operation, pa.array([envelope.OP_UPDATE, envelope.OP_DELETE])).to_numpy()
    # Rows without columns are all equal, and segments have no old rows of them.
    has_old = (
        rows[envelope.OLD].is_valid().to_numpy()
        if envelope.OLD in rows.column_names
        else np.zeros(len(rows), dtype=bool)
    )
    if schema.columns and bool(np.any(removes & ~has_old)):
        raise UnsupportedChange(f"{schema.qualified_name}: a change came without the whole old row")
    after, before = row_numbers(rows, schema)
    size = int(max(after.max(initial=-1), before.max(initial=-1))) + 1
    net = np.bincount(after[adds], minlength=size) - np.bincount(before[removes], minlength=size)
    place = np.zeros(size, dtype=np.int64)
    place[before[removes]] = np.flatnonzero(removes) + len(rows)
    place[after[adds]] = np.flatnonzero(adds)
    changed = np.flatnonzero(net)
    if replaces and bool(np.any(net < 0)):
        raise UnsupportedChange(f"{schema.qualified_name}: a row was removed that does not exist")
    return Counted(_taken(rows, schema, place[changed]), net[changed], replaces)


def _taken(rows: pa.Table, schema: TableSchema, places: Numbers) -> pa.Table:
    # Places from len(rows) on mean the old row of a change.
    chosen, length = pa.array(places), len(rows)
    base = pa.array(places % max(length, 1))
    names, arrays = [], []
    for column in schema.columns:
        both = pa.concat_arrays([whole(rows[column.name]), old_values(rows, column.name)])
        names.append(column.name)
        arrays.append(both.take(chosen))
    special = pa.concat_arrays([whole(rows[envelope.SPECIAL]), whole(rows[envelope.OLD_SPECIAL])]).take(chosen)
    names += [envelope.LSN, envelope.TS, envelope.SPECIAL]
    arrays += [whole(rows[envelope.LSN]).take(base), whole(rows[envelope.TS]).take(base), special]
    return pa.table(arrays, names=names)
