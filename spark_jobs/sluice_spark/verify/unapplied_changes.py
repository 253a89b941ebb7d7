"""Changes that the spool has and a version of the lake table does not: what they make of its rows.

Owns that the rows of a version together with the changes after it are the table as of one position,
row by row, by the same fold that the applier commits with. Pure.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH, Folded
from sluice_spark.read.changes import ARROW_MAP
from sluice_spark.verify.canonical import SPECIAL_SUFFIX, Canonical, whole
from sluice_spark.verify.hashing import Hashes


@dataclass(frozen=True, slots=True)
class UnappliedChanges:
    """What the folded changes make of the rows with the key hashes `removed` (sorted): `replaces` says
    that no row of the version is left.
    """

    folded: Folded
    schema: TableSchema
    origins: Hashes
    removed: Hashes

    @property
    def replaces(self) -> bool:
        return self.folded.replaces

    @classmethod
    def of(cls, folded: Folded, schema: TableSchema, keys: Canonical) -> "UnappliedChanges":
        """`keys` is the form of a key."""
        if folded.replaces:
            none = np.empty(0, np.uint64)
            return cls(folded, schema, none, none)
        names = {column.name: f"{KEY}{place}" for place, column in enumerate(schema.key_columns)}
        renamed = folded.rows.rename_columns(
            [
                f"{KEY}{name.removeprefix(KEY_SPECIAL)}{SPECIAL_SUFFIX}" if name.startswith(KEY_SPECIAL) else name
                for name in folded.rows.column_names
            ]
        )
        origins = keys.hashes(renamed, names)
        match = whole(folded.rows[MATCH]).to_numpy(zero_copy_only=False)
        return cls(folded, schema, origins, np.unique(origins[match]))

    def rows(self, base: pa.Table, base_keys: Hashes) -> pa.Table:
        """The rows that there are afterwards, of those that changed. `base` are the version's rows
        with the keys `removed`.
        """
        rows = self.folded.rows
        origins = self.origins
        if not self.folded.replaces:
            alive = np.flatnonzero(~whole(rows[DELETED]).to_numpy(zero_copy_only=False))
            rows, origins = rows.take(pa.array(alive)), origins[alive]
        names = [column.name for column in self.schema.columns]
        result = rows.select([*names, envelope.SPECIAL])
        if not self.folded.kept or not len(result):
            return result
        order = np.argsort(base_keys, kind="stable")
        place = np.searchsorted(base_keys[order], origins)
        found = place < len(order)
        found[found] = base_keys[order][place[found]] == origins[found]
        at = pa.array(
            np.where(found, order[np.minimum(place, max(len(order) - 1, 0))] if len(order) else 0, 0), mask=~found
        )
        for column in self.folded.kept:
            keep = whole(rows[f"{KEEP}{column.attnum}"])
            old = whole(base[column.name]).take(at)
            new = pc.if_else(keep, old, whole(result[column.name]).cast(old.type))
            result = result.set_column(names.index(column.name), column.name, new)
            if column.lake.special and envelope.SPECIAL in base.column_names:
                result = _with_kept_marks(result, keep, whole(base[envelope.SPECIAL]).take(at), column.name)
        return result


def _with_kept_marks(rows: pa.Table, keep: pa.Array, before: pa.Array, name: str) -> pa.Table:
    marks = []
    for kept, old, new in zip(keep.to_pylist(), before.to_pylist(), rows[envelope.SPECIAL].to_pylist(), strict=True):
        one = dict(new or [])
        if kept and name in dict(old or []):
            one[name] = dict(old)[name]
        marks.append(list(one.items()) or None)
    place = rows.column_names.index(envelope.SPECIAL)
    return rows.set_column(place, envelope.SPECIAL, pa.array(marks, ARROW_MAP))


def nothing(schema: TableSchema) -> pa.Table:
    """A table that has the columns and no row."""
    return pa.table({column.name: pa.nulls(0) for column in schema.columns})
