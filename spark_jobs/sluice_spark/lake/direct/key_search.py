"""Where keys are in a data file: positions of the rows whose key is one of a window's.

Owns exactness: two keys match if and only if the MERGE statement would match them. Values are compared
byte for byte, NULL only with NULL and only where a marked text stands beside it. Floating-point keys,
for which that is not so, are refused. Pure: Arrow in, numpy out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import KEY, KEY_SPECIAL
from sluice_spark.fold.row_identity import special_rows, special_texts, whole
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.layout import TableLayout

Numbers = npt.NDArray[np.int64]
VALUE, PLACE = "value", "place"


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The key of a lake table: names of its columns, their fields in the data files, and the field of
    the marked values if a key value may be one. Only rows count in which the boolean field `only` is true, if there is
    one.
    """

    names: tuple[str, ...]
    fields: tuple[pa.Field, ...]
    marked: tuple[bool, ...]
    special: pa.Field | None
    only: pa.Field | None = None

    @staticmethod
    def of(schema: TableSchema, layout: TableLayout, *, only: str = "") -> "KeyColumns":
        """Raises NotDirect."""
        columns = schema.key_columns
        fields = tuple(layout.field(column.name) for column in columns)
        if any(pa.types.is_floating(field.type) or pa.types.is_nested(field.type) for field in fields):
            raise NotDirect("a key column is a floating-point number or nested")
        marked = tuple(bool(column.lake.special) for column in columns)
        special = layout.field(envelope.SPECIAL) if any(marked) else None
        return KeyColumns(
            tuple(column.name for column in columns), fields, marked, special, layout.field(only) if only else None
        )

    @property
    def integer(self) -> bool:
        """Whether a key is one integer, so that keys can be sorted."""
        return len(self.fields) == 1 and bool(pa.types.is_integer(self.fields[0].type))

    @property
    def physical(self) -> list[str]:
        """The key columns' names in data files."""
        return [field.name for field in self.fields]

    @property
    def stored(self) -> list[str]:
        """The columns of a data file to be read."""
        return self.physical + [field.name for field in (self.special, self.only) if field is not None]


def _numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    values: Numbers = whole(column).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


class FileKeys:
    """The keys of one data file, by position. `table` is what a cache keeps of them."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @staticmethod
    def read(rows: pa.Table, key: KeyColumns) -> "FileKeys":
        """From the columns `key.stored` of a whole data file."""
        if any(field.name not in rows.column_names for field in key.fields):
            raise UnsupportedChange("a data file of the lake table has no key column")
        places: Numbers | None = None
        if key.only is not None:
            # Whether a row of a data file counts never changes: it is another row then.
            counts = whole(rows[key.only.name]).fill_null(fill_value=False)
            places = np.flatnonzero(counts.to_numpy(zero_copy_only=False))
            rows = rows.filter(counts)
        if key.integer:
            column = rows[key.fields[0].name]
            values = _numbers(column.drop_null())
            columns = {VALUE: values}
            if (
                places is not None
                or len(values) < len(rows)
                or (len(values) > 1 and not bool((values[1:] >= values[:-1]).all()))
            ):
                # A removed row may be from before its column became the key, and have no value.
                known = np.flatnonzero(column.is_valid().to_numpy())
                known = known if places is None else places[known]
                order = np.argsort(values, kind="stable")
                columns = {VALUE: values[order], PLACE: known[order].astype(np.int32)}
            return FileKeys(pa.table(columns))
        arrays = [whole(rows[field.name]).cast(field.type) for field in key.fields]
        if key.special is not None:
            special = key.special.name
            marks = special_rows(rows[special]) if special in rows.column_names else {}
            arrays += [
                special_texts(marks, name, len(rows))
                for name, marked in zip(key.names, key.marked, strict=True)
                if marked
            ]
        table = pa.table(arrays, names=[str(place) for place in range(len(arrays))])
        return FileKeys(table if places is None else table.append_column(PLACE, pa.array(places, pa.int64())))


class WindowKeys:
    """The keys of a window's rows that may be in the lake, to be looked for in many files.
    `ordinals` are the rows that have them. Raises UnsupportedChange when two have the same.
    """

    def __init__(self, rows: pa.Table, ordinals: Numbers, key: KeyColumns) -> None:
        self._key = key
        chosen = rows.take(pa.array(ordinals)) if len(ordinals) < len(rows) else rows
        self._values = [whole(chosen[f"{KEY}{place}"]).cast(field.type) for place, field in enumerate(key.fields)]
        if key.integer:
            numbers = _numbers(self._values[0])
            order = np.argsort(numbers, kind="stable")
        else:
            texts = [whole(chosen[f"{KEY_SPECIAL}{place}"]) for place, marked in enumerate(key.marked) if marked]
            self._tuples = _Tuples([*self._values, *texts], len(ordinals))
            numbers = self._tuples.numbers
            order = np.argsort(numbers, kind="stable")
        self._sorted, self._ordinals = numbers[order], ordinals[order]
        if bool((self._sorted[1:] == self._sorted[:-1]).any()):
            raise UnsupportedChange("a window has two net changes of one key")

    def __len__(self) -> int:
        return len(self._sorted)

    def may_be_in(self, low: Mapping[str, Any], high: Mapping[str, Any]) -> bool:
        """Whether a key can be in a file with these bounds, by physical name as in its statistics."""
        if not len(self):
            return False
        if not self._key.integer:
            return all(
                _overlap(values, low.get(field.name), high.get(field.name))
                for field, values in zip(self._key.fields, self._values, strict=True)
            )
        least, greatest = (bounds.get(self._key.fields[0].name) for bounds in (low, high))
        if not isinstance(least, int) or not isinstance(greatest, int):
            return True
        place = int(np.searchsorted(self._sorted, least))
        return place < len(self._sorted) and int(self._sorted[place]) <= greatest

    def find(self, file: FileKeys) -> tuple[Numbers, Numbers]:
        """(positions in the file, ordinals of the window's rows), one pair for each match."""
        if not self._key.integer:
            names = [name for name in file.table.column_names if name != PLACE]
            positions, numbers = self._tuples.find([whole(file.table[name]) for name in names])
            if PLACE in file.table.column_names:
                positions = whole(file.table[PLACE]).to_numpy()[positions]
            return positions, self._ordinals[numbers]
        values = whole(file.table[VALUE]).to_numpy()
        start, end = np.searchsorted(values, self._sorted, "left"), np.searchsorted(values, self._sorted, "right")
        many = end - start
        # A key may be in a file several times: once alive, and any number of times removed.
        which = np.repeat(np.arange(len(many)), many)
        places = np.repeat(start - np.cumsum(many) + many, many) + np.arange(len(which))
        if PLACE in file.table.column_names:
            places = whole(file.table[PLACE]).to_numpy()[places].astype(np.int64)
        return places, self._ordinals[which]


@dataclass(frozen=True, slots=True)
class Found:
    """Where the keys of `rows` are: (positions, ordinals) by the path of a data file, removed rows
    included. Data files never change, so this holds for every version of the table that has the file.
    """

    rows: pa.Table
    key: KeyColumns
    keys: WindowKeys
    by_path: Mapping[str, tuple[Numbers, Numbers]]


class _Tuples:
    """Numbers from 0 for the distinct tuples that `columns` spell, and where they are in others."""

    def __init__(self, columns: Sequence[pa.Array], length: int) -> None:
        self.numbers = np.zeros(length, dtype=np.int64)
        self._steps: list[tuple[pa.Array, Numbers]] = []
        for column in columns:
            distinct = pc.unique(column)
            codes = pc.index_in(column, value_set=distinct).to_numpy(zero_copy_only=False).astype(np.int64)
            # Dense after each column, so that the product stays small.
            there, numbers = np.unique(self.numbers * len(distinct) + codes, return_inverse=True)
            self.numbers = numbers.astype(np.int64)
            self._steps.append((distinct, there))

    def find(self, columns: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
        """(positions, numbers) of the rows of `columns` that are one of the tuples."""
        positions = np.arange(len(columns[0]), dtype=np.int64)
        numbers = np.zeros(len(positions), dtype=np.int64)
        for column, (distinct, there) in zip(columns, self._steps, strict=True):
            rest = column if len(positions) == len(column) else column.take(pa.array(positions))
            codes = pc.index_in(rest, value_set=distinct)
            known = codes.is_valid().to_numpy(zero_copy_only=False)
            positions = positions[known]
            combined = numbers[known] * len(distinct) + codes.drop_null().to_numpy().astype(np.int64)
            places = np.minimum(np.searchsorted(there, combined), len(there) - 1)
            hit = there[places] == combined
            positions, numbers = positions[hit], places[hit].astype(np.int64)
        return positions, numbers


def _overlap(values: pa.Array, low: Any, high: Any) -> bool:
    """Whether a value lies within bounds of statistics. Only texts are compared; others may be."""
    if not isinstance(low, str) or not isinstance(high, str) or not pa.types.is_string(values.type):
        return True
    if values.null_count:
        return True
    within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return bool(pc.any(within, min_count=0).as_py())
