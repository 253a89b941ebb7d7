"""The lake table equals a source table that has no key but sends whole old rows: rows are counted,
not named.

Owns multiplicity: of three equal rows one delete leaves two. A window is the difference in number
of each distinct row; one MERGE removes all copies of the rows that became fewer and puts back those
that remain. Which of several equal rows keeps its LSN and commit time is not defined: they take the
last change's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import MATCH, after_truncate, in_order, row_numbers, unchanged_flags
from sluice_spark.fold.row_identity import Numbers, special_rows, special_texts, whole
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.merge import literal, metadata_columns, quote
from sluice_spark.modes.mirror import lake_columns, refuse_unplaced
from sluice_spark.modes.target import Target

ROW = "_sluice_row"
VIEW = "sluice_rows"
ROWS_AT_ONCE = 100_000


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
    # Rows without columns are all alike: which of them an old row was needs no word, and segments
    # have none.
    if schema.columns and bool(np.any(removes & ~rows[envelope.OLD].is_valid().to_numpy())):
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
        both = pa.concat_arrays([whole(rows[column.name]), whole(pc.struct_field(rows[envelope.OLD], [column.name]))])
        names.append(column.name)
        arrays.append(both.take(chosen))
    special = pa.concat_arrays([whole(rows[envelope.SPECIAL]), whole(rows[envelope.OLD_SPECIAL])]).take(chosen)
    names += [envelope.LSN, envelope.TS, envelope.SPECIAL]
    arrays += [whole(rows[envelope.LSN]).take(base), whole(rows[envelope.TS]).take(base), special]
    return pa.table(arrays, names=names)


def apply_changes(target: Target, portions: Iterable[pa.Table], *, version: int, keyed: bool = False) -> None:
    """Commits the net effect of a window with the marker `version`. It comes in portions, no two
    with the same row.

    `keyed` says that there may be several.
    """
    columns = lake_columns(target.schema, metadata=target.metadata)
    mode = ""
    with target.handover.pieces() as pieces:
        for rows in portions:
            counted = count(rows, target.schema)
            refuse_unplaced(counted.rows, target.schema)
            mode = "overwrite" if counted.replaces else "append" if not keyed and bool(np.all(counted.net > 0)) else ""
            for piece in (
                _repeated(counted.rows, counted.net)
                if mode
                else _source(counted, _numbers_in_lake(target, counted), target.schema)
            ):
                pieces.add(piece)
        if mode:
            target.lake.write(target.app_id, version, frame=pieces.frame(columns), mode=mode)
        elif pieces.rows:
            working = [(name, "string") for name in _texts(target.schema)] + [(MATCH, "boolean")]
            pieces.frame(columns + working).createOrReplaceTempView(VIEW)
            target.lake.execute(
                target.app_id,
                version,
                statement=merge_text(target.schema, metadata=target.metadata, target=target.lake.expression),
            )


def _numbers_in_lake(target: Target, counted: Counted) -> Numbers:
    present = np.zeros(len(counted.net), dtype=np.int64)
    fewer = np.flatnonzero(counted.net < 0)
    if not len(fewer):
        return present
    table = _with_texts(counted.rows.take(pa.array(fewer)), target.schema).append_column(ROW, pa.array(fewer))
    columns = (
        lake_columns(target.schema, metadata=target.metadata)
        + [(name, "string") for name in _texts(target.schema)]
        + [(ROW, "bigint")]
    )

    with translated_errors(), target.handover.pieces() as pieces:
        pieces.add(table)
        pieces.frame(columns).createOrReplaceTempView(VIEW)
        text = (
            f"SELECT s.{ROW}, count(*) FROM {target.lake.expression} t JOIN {VIEW} s ON "
            f"{_equal(target.schema)} GROUP BY s.{ROW}"
        )
        found = target.lake.session.sql(text).toArrow()
        present[found.column(0).to_numpy()] = found.column(1).to_numpy()
    if bool(np.any(present[fewer] + counted.net[fewer] < 0)):
        raise UnsupportedChange(f"{target.schema.qualified_name}: a row was removed that the lake does not have")
    return present


def _source(counted: Counted, present: Numbers, schema: TableSchema) -> Iterator[pa.Table]:
    """Each row that became fewer once, to remove all its copies, and every row as often as it must
    be added.
    """
    fewer = counted.net < 0
    rows = _with_texts(counted.rows, schema)
    removed = rows.filter(pa.array(fewer))
    yield removed.append_column(MATCH, pa.repeat(pa.scalar(value=True), len(removed)))
    for piece in _repeated(rows, np.where(fewer, present + counted.net, counted.net)):
        yield piece.append_column(MATCH, pa.repeat(pa.scalar(value=False), len(piece)))


def _repeated(rows: pa.Table, copies: Numbers) -> Iterator[pa.Table]:
    """Each row as often as `copies` says, some at a time: one row may stand for any number in the
    lake.
    """
    ends = np.cumsum(copies)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, ROWS_AT_ONCE):
        places = np.searchsorted(ends, np.arange(start, min(start + ROWS_AT_ONCE, total)), side="right")
        yield rows.take(pa.array(places))


def merge_text(schema: TableSchema, *, metadata: bool, target: str) -> str:
    """Removes every copy of the rows that match, adds the rows that must not."""
    names = [*(column.name for column in schema.columns), *metadata_columns(schema, wanted=metadata)]
    return (
        f"MERGE INTO {target} AS t USING {VIEW} AS s ON s.{quote(MATCH)} AND {_equal(schema)}\nWHEN "
        "MATCHED THEN DELETE\n"
        f"WHEN NOT MATCHED AND NOT s.{quote(MATCH)} THEN INSERT ({', '.join(map(quote, names))}) "
        f"VALUES ({', '.join(f's.{quote(name)}' for name in names)})"
    )


def _texts(schema: TableSchema) -> list[str]:
    return [f"{ROW}_special_{column.attnum}" for column in schema.columns if column.lake.special]


def _with_texts(rows: pa.Table, schema: TableSchema) -> pa.Table:
    marked = special_rows(rows[envelope.SPECIAL])
    for column in schema.columns:
        if column.lake.special:
            rows = rows.append_column(f"{ROW}_special_{column.attnum}", special_texts(marked, column.name, len(rows)))
    return rows


def _equal(schema: TableSchema) -> str:
    conditions = ["true"]
    for column in schema.columns:
        here, there = f"t.{quote(column.name)}", f"s.{quote(column.name)}"
        if "float" in column.lake.sql or "double" in column.lake.sql:
            # As text 0.0 and -0.0 differ, as they do in the source's text.
            here, there = f"CAST({here} AS STRING)", f"CAST({there} AS STRING)"
        conditions.append(f"{here} <=> {there}")
        if column.lake.special:
            text = f"element_at(t.{quote(envelope.SPECIAL)}, {literal(column.name)})"
            conditions.append(f"{text} <=> s.{quote(f'{ROW}_special_{column.attnum}')}")
    return " AND ".join(conditions)
