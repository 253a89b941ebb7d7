"""Changes of an older schema version, seen from the version that the lake table has now: under today's
names, in today's types, without the columns that are gone.

Owns that a column is the same one by its attnum and by nothing else: of two columns that had one name
in turn, the older's values never reach the newer. Columns that came later are not made up here, see
`unite`. Pure: Arrow in, Arrow out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.evolution import Retyped, text_after
from sluice.contract.schema import TableSchema
from sluice.errors import ManifestCorrupt
from sluice_spark.fold.row_identity import whole
from sluice_spark.read.column_defaults import arrow_type


@dataclass(frozen=True)
class Projection:
    """From `version` to `target`, which is the same or a later one."""

    version: TableSchema
    target: TableSchema

    @cached_property
    def schema(self) -> TableSchema:
        """`version` as its rows look afterwards."""
        now = {column.attnum: column for column in self.target.columns}
        columns = tuple(
            replace(column, name=now[column.attnum].name, lake=now[column.attnum].lake)
            for column in self.version.columns
            if column.attnum in now
        )
        return replace(self.version, columns=columns)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """What each column is called afterwards; those that go are not there."""
        now = {column.attnum: column.name for column in self.target.columns}
        return {column.name: now[column.attnum] for column in self.version.columns if column.attnum in now}

    @cached_property
    def _types(self) -> Mapping[str, pa.DataType]:
        """By the name afterwards, of columns whose values are stored otherwise."""
        before = {column.attnum: column.lake.sql for column in self.version.columns}
        return {
            column.name: arrow_type(column.lake.sql)
            for column in self.target.columns
            if before.get(column.attnum, column.lake.sql) != column.lake.sql
        }

    @cached_property
    def _retyped(self) -> Mapping[str, Retyped]:
        """By the name before, of columns that have another type afterwards."""
        now = {column.attnum: column for column in self.target.columns}
        return {
            column.name: Retyped(now[column.attnum], column)
            for column in self.version.columns
            if column.attnum in now and now[column.attnum].type_oid != column.type_oid
        }

    def _text(self, name: str, text: str) -> str:
        return text_after(self._retyped[name], text) if name in self._retyped else text

    @cached_property
    def _is_nothing(self) -> bool:
        return not self._types and all(self._names.get(column.name) == column.name for column in self.version.columns)

    def stored(self, names: Iterable[str]) -> list[str]:
        """What a segment calls the columns `names`, as far as it has them."""
        before = {now: then for then, now in self._names.items()}
        return [
            name if envelope.is_reserved(name) else before[name]
            for name in names
            if name in before or envelope.is_reserved(name)
        ]

    def of(self, rows: pa.Table) -> pa.Table:
        """`rows` of a segment, all columns or some. Raises ManifestCorrupt."""
        if self._is_nothing:
            return rows
        arrays, names = [], []
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if name == envelope.OLD:
                arrays.append(self._old(whole(column)))
                names.append(name)
            elif name == envelope.UNCHANGED:
                arrays.append(self._unsent(column))
                names.append(name)
            elif name in envelope.MARKS:
                arrays.append(self._marks(column))
                names.append(name)
            elif envelope.is_reserved(name):
                arrays.append(column)
                names.append(name)
            elif name in self._names:
                names.append(self._names[name])
                arrays.append(self._typed(column, names[-1]))
        return pa.table(arrays, names=names)

    def require_whole(self, rows: pa.Table) -> None:
        """Raises ManifestCorrupt unless `rows` have every column of their version."""
        names = set(rows.column_names)
        lost = next((column for column in self.version.columns if column.name not in names), None)
        if lost is not None:
            raise ManifestCorrupt(
                f"a segment of {self.version.qualified_name} lacks column {lost.name!r} of its schema version"
            )

    def _typed(self, column: pa.ChunkedArray | pa.Array, name: str) -> pa.ChunkedArray | pa.Array:
        return column.cast(self._types[name]) if name in self._types else column

    def _old(self, old: pa.Array) -> pa.Array:
        fields = [
            (self._names[field.name], old.field(place))
            for place, field in enumerate(old.type)
            if field.name in self._names
        ]
        if not fields:
            # A struct without fields cannot be made from arrays.
            return pa.array([None if row is None else {} for row in old.to_pylist()], pa.struct([]))
        return pa.StructArray.from_arrays(
            [self._typed(values, name) for name, values in fields],
            names=[name for name, _ in fields],
            mask=old.is_null(),
        )

    def _unsent(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Values that were not sent are missing in columns that are still there only."""
        there = {one.attnum for one in self.target.columns}
        if column.null_count == len(column):
            return column
        kept = [[one for one in unsent if one in there] or None if unsent else None for unsent in column.to_pylist()]
        return pa.chunked_array([pa.array(kept, column.type)])

    def _marks(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if column.null_count == len(column):
            return column
        kept = [
            [(self._names[name], self._text(name, text)) for name, text in marks if name in self._names] or None
            if marks
            else None
            for marks in column.to_pylist()
        ]
        return pa.chunked_array([pa.array(kept, column.type)])
