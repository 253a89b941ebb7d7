"""Rows of a lake table beside those of a new snapshot, for kinds whose tables keep what they have: kept apart by key,
compared column by column.

Owns exactness of the comparison: NULL is a value, marked values count, and zeros and NaN are compared as they are
spelled. A column keeps its name and its type: what cannot be kept so is refused by name.
"""

from collections.abc import Iterable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.lake.sql import quote


def shaped(old: DataFrame, columns: Sequence[tuple[str, str]], schema: TableSchema) -> DataFrame:
    """The rows `old` with `columns` (name, Spark type); what they lack is NULL. Raises UnsupportedChange."""
    types = dict(old.dtypes)
    chosen = []
    for name, kind in columns:
        if types.get(name, kind) != kind:
            raise UnsupportedChange(
                f"{schema.qualified_name}: column {name!r} is {kind} now and {types[name]} in the rows that its lake "
                "table keeps; give the target another name, which begins a table of its own beside this one"
            )
        value = sql.col(quote(name)) if name in types else sql.lit(None).cast(kind)
        chosen.append(value.alias(name))
    return old.select(*chosen)


def of_each_key(rows: DataFrame, schema: TableSchema, *, newest: str) -> DataFrame:
    """Of rows that have one key the one of which the column `newest` is NULL, or greatest: another key, by which the
    rows of a table are known now, may be the same for rows that were deleted.
    """
    number = "_sluice_number"
    terms = [sql.col(quote(column.name)) for column in schema.key_columns]
    terms += [
        sql.element_at(sql.col(quote(envelope.SPECIAL)), sql.lit(column.name))
        for column in schema.key_columns
        if column.lake.special
    ]
    order = Window.partitionBy(*terms).orderBy(sql.col(newest).desc_nulls_first())
    return rows.withColumn(number, sql.row_number().over(order)).where(sql.col(number) == 1).drop(number)


def same_key(schema: TableSchema, left: str, right: str) -> Column:
    """Whether the rows that have these aliases have one key."""
    return _equal(schema.key_columns, left, right)


def same_values(columns: Iterable[ColumnSchema], left: str, right: str) -> Column:
    """Whether the rows that have these aliases are equal in `columns`."""
    return _equal(columns, left, right)


def _equal(columns: Iterable[ColumnSchema], left: str, right: str) -> Column:
    return reduce(Column.__and__, (_same(column, left, right) for column in columns), sql.lit(True))  # noqa: FBT003


def _same(column: ColumnSchema, left: str, right: str) -> Column:
    mine, theirs = (sql.col(f"{side}.{quote(column.name)}") for side in (left, right))
    if "float" in column.lake.sql or "double" in column.lake.sql:
        mine, theirs = mine.cast("string"), theirs.cast("string")
    same = mine.eqNullSafe(theirs)
    if column.lake.special:
        texts = (
            sql.element_at(sql.col(f"{side}.{quote(envelope.SPECIAL)}"), sql.lit(column.name)) for side in (left, right)
        )
        same &= next(texts).eqNullSafe(next(texts))
    return same
