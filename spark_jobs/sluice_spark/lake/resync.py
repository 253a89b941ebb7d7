"""Rows of a lake table beside those of a new snapshot, for kinds whose tables keep what they have: kept apart by key,
compared column by column.

Owns exactness of the comparison: NULL is a value, marked values count, and zeros and NaN are compared as they are
spelled, but in keys: there the source takes both zeros for one. A column keeps its name and its type: what cannot be
kept so is refused by name.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import reduce

import structlog
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from sluice.contract import envelope
from sluice.contract.evolution import Added, Dropped, Renamed, Retyped, Step, widens
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.lake import evolution
from sluice_spark.lake.evolution import columns_sha256
from sluice_spark.lake.examined_version import OURS, schema_app_id
from sluice_spark.lake.foreign_commits import Commit, newest_own
from sluice_spark.lake.plan import Columns
from sluice_spark.lake.sql import quote
from sluice_spark.lake.table import LakeTable

_log = structlog.get_logger("sluice.apply")

PLACE = "_sluice_place"
"""A column for the time of a statement, see `placed`."""


def own_rows(lake: LakeTable) -> str:
    """In SQL, the version of `lake` whose rows are kept: the newest one, or where somebody else changed it the last one
    before that. Raises UnsupportedChange when the log does not tell which one that is.
    """

    def read(number: int) -> Commit | None:
        try:
            (found,) = lake.commits_since(number - 1, to=number)
        except UnsupportedChange:
            return None  # the log was cleaned up
        with suppress(UnsupportedChange):  # It does not say what columns there were before: these may be others.
            return found if lake.changes_columns(found) else replace(found, columns=None)
        return found

    newest = lake.recorded().version
    own, changed = newest_own(newest, prefix=OURS, read=read)
    if changed and own is not None:
        _log.warning("what somebody else changed in a lake table is not kept", path=lake.path, version=own)
        # The commit that follows is based on what was found here, not on what was examined before.
        lake.place = replace(lake.place, version=newest, seen=True)
        return f"{lake.expression} VERSION AS OF {own}"
    if changed:
        raise UnsupportedChange(
            "somebody else changed the lake table, and its log does not say any more what rows it had before; give the "
            "target another name, which begins a table of its own beside this one"
        )
    return lake.expression


def kept(
    lake: LakeTable, own: str, versions: Iterable[TableSchema], schema: TableSchema, columns: Columns
) -> DataFrame:
    """The rows of `lake` as `own_rows` has them, with the columns of one of the `versions` of its source table, in
    `columns` and with the names of `schema`: a column is known by its number, whatever it is called. Raises
    UnsupportedChange.
    """
    present = lake.session.sql(f"SELECT * FROM {own}")
    # What the newest version says of its columns is not about the rows of an earlier one.
    known = lake.columns_before if own == lake.expression else lambda: None
    stands = _version_of(present.dtypes, versions, schema, known=known)
    if stands is None:
        # It is another table, which had the name before: that is all that they have in common.
        return shaped(present, columns, schema)
    old, new = evolution.Shape(stands, tuple(present.dtypes)), evolution.Shape(schema, columns)
    wanted = evolution.values(_steps(stands, schema), old, new, with_defaults=True)
    text = evolution.selection(present.dtypes, wanted, old, new)
    return lake.session.sql(f"SELECT {text} FROM {own}")


def _version_of(
    present: Iterable[tuple[str, str]],
    versions: Iterable[TableSchema],
    schema: TableSchema,
    *,
    known: Callable[[], tuple[int, str] | None],
) -> TableSchema | None:
    """The version whose columns have the names and the Spark types of those that are `present`, and are those that
    `known` says, if it says any. None for a table that another one of the source left under its name. Raises
    UnsupportedChange where it is not certain which columns the rows have.
    """
    versions = tuple(versions)
    own = {(name, kind) for name, kind in present if not name.startswith(envelope.RESERVED_PREFIX)}
    found = [version for version in versions if _named(version) == own]
    stands = known()
    stated = [version for version in found if stands is not None and columns_sha256(version) == stands[1]]
    if not found and (stands is None or all(version.version > 1 for version in versions)):
        # Of a table that was forgotten, and is back, nobody knows the first versions.
        return None
    if not stated and (len({_numbered(version) for version in found}) > 1 or (stands is not None and stands[1])):
        raise UnsupportedChange(
            f"{schema.qualified_name}: before the table was read again, columns exchanged their names or got the "
            "name of one that was dropped, or an older copy of the spool was restored, and nothing says which of them "
            "the rows have that its lake table keeps; give the target another name, which begins a table of its own "
            "beside this one"
        )
    return max(stated or found, key=lambda version: version.version, default=None)


def _named(version: TableSchema) -> set[tuple[str, str]]:
    return {(column.name, column.lake.sql) for column in version.columns}


def _numbered(version: TableSchema) -> frozenset[tuple[int, str]]:
    return frozenset((column.attnum, column.name) for column in version.columns)


def state_columns(lake: LakeTable, versions: Iterable[TableSchema], schema: TableSchema) -> None:
    """After a snapshot in the version `schema`: leaves a marker of it where another one of the `versions` has columns
    of the same names and types, so that the next snapshot finds which of them the rows have.
    """
    alike = [one for one in versions if _named(one) == _named(schema) and _numbered(one) != _numbered(schema)]
    app_id = schema_app_id(lake.app_id)
    if alike and (lake.marker(app_id) or 0) < schema.version:
        lake.columns_sha256 = columns_sha256(schema)
        lake.change_columns({app_id: schema.version}, list)


def _steps(old: TableSchema, new: TableSchema) -> list[Step]:
    """From the columns of `old` to those of `new`: also where rows from before cannot have all values, because the
    table was read again for that.
    """
    before = {column.attnum: column for column in old.columns}
    after = {column.attnum: column for column in new.columns}
    found: list[Step] = [Dropped(column) for number, column in before.items() if number not in after]
    for number, column in after.items():
        earlier = before.get(number)
        if earlier is None:
            # What rows had in a column before it was published is not known.
            found.append(Added(column if number > old.attributes else replace(column, missing=None)))
            continue
        if earlier.name != column.name:
            found.append(Renamed(column, earlier.name))
        if earlier.lake.sql != column.lake.sql:
            if not widens(earlier, column):
                raise _other_type(new, column.name, now=column.lake.sql, before=earlier.lake.sql)
            found.append(Retyped(column, earlier))
    return found


def _other_type(schema: TableSchema, name: str, *, now: str, before: str) -> UnsupportedChange:
    return UnsupportedChange(
        f"{schema.qualified_name}: column {name!r} is {now} now and {before} in the rows that its lake table keeps; "
        "give the target another name, which begins a table of its own beside this one"
    )


def shaped(old: DataFrame, columns: Columns, schema: TableSchema) -> DataFrame:
    """The rows `old` with `columns` (name, Spark type); what they lack is NULL. Raises UnsupportedChange."""
    types = dict(old.dtypes)
    chosen = []
    for name, kind in columns:
        if types.get(name, kind) != kind:
            raise _other_type(schema, name, now=kind, before=types[name])
        value = sql.col(quote(name)) if name in types else sql.lit(None).cast(kind)
        chosen.append(value.alias(name))
    return old.select(*chosen)


def of_each_key(rows: DataFrame, schema: TableSchema, *, newest: str) -> DataFrame:
    """Of rows that have one key the one of which the column `newest` is NULL, or greatest: another key, by which the
    rows of a table are known now, may be the same for rows that were deleted.
    """
    return placed(rows, schema, newest=newest).where(sql.col(PLACE) == 1).drop(PLACE)


def placed(rows: DataFrame, schema: TableSchema, *, newest: str) -> DataFrame:
    """`rows` with the PLACE of each among those that have its key, the one that `of_each_key` chooses first."""
    terms = [sql.col(quote(column.name)) for column in schema.key_columns]
    terms += [
        sql.element_at(sql.col(quote(envelope.SPECIAL)), sql.lit(column.name))
        for column in schema.key_columns
        if column.lake.special
    ]
    order = Window.partitionBy(*terms).orderBy(sql.col(newest).desc_nulls_first())
    return rows.withColumn(PLACE, sql.row_number().over(order))


def same_key(schema: TableSchema, left: str, right: str) -> Column:
    """Whether the rows that have these aliases have one key: as a key, minus zero is zero."""
    return _all(_same(column, left, right, spelled=False) for column in schema.key_columns)


def same_values(columns: Iterable[ColumnSchema], left: str, right: str) -> Column:
    """Whether the rows that have these aliases are equal in `columns`."""
    return _all(_same(column, left, right, spelled=True) for column in columns)


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__and__, conditions, sql.lit(True))  # noqa: FBT003


def _same(column: ColumnSchema, left: str, right: str, *, spelled: bool) -> Column:
    mine, theirs = (sql.col(f"{side}.{quote(column.name)}") for side in (left, right))
    if spelled and ("float" in column.lake.sql or "double" in column.lake.sql):
        mine, theirs = mine.cast("string"), theirs.cast("string")
    same = mine.eqNullSafe(theirs)
    if column.lake.special:
        texts = (
            sql.element_at(sql.col(f"{side}.{quote(envelope.SPECIAL)}"), sql.lit(column.name)) for side in (left, right)
        )
        same &= next(texts).eqNullSafe(next(texts))
    return same
