"""A mirror whose deleted rows stay, and say when they were deleted.

Owns that a row which lives is the source's, and one that does not is the last that lived.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from sluice.contract import envelope, lake_kinds
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import Folded
from sluice_spark.fold.settle import refuse_without_key
from sluice_spark.fold.soft_deletes import soft_deletes
from sluice_spark.kinds.kind import Expiry, Kind, Moment, refuse_unplaced
from sluice_spark.kinds.settled import Settled
from sluice_spark.lake.resync import of_each_key, same_key
from sluice_spark.lake.sql import quote


@dataclass(frozen=True, slots=True)
class SoftDeletes(Settled):
    """Every row that the source has or had, by key. Rows that were deleted `retention` seconds ago are removed (None:
    never).
    """

    retention: float | None = None
    name: ClassVar[str] = lake_kinds.SOFT_DELETES
    sign: ClassVar[str] = envelope.DELETED_AT

    def require(self, schema: TableSchema) -> None:
        refuse_without_key(schema, "a mirror with soft deletes")

    def metadata(self, schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
        return (envelope.DELETED_AT, *Kind.metadata(self, schema, wanted=wanted))

    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        # A key that is inserted may be the one of a row that was deleted.
        return False

    def net(self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True) -> Folded:
        self.require(schema)
        folded = soft_deletes(rows, schema, removals_sent=removals_sent)
        refuse_unplaced(folded.rows, schema)
        return folded

    def resynced(
        self, old: DataFrame, new: DataFrame, schema: TableSchema, columns: Sequence[tuple[str, str]], moment: Moment
    ) -> DataFrame:
        before = of_each_key(old, schema, newest=self.sign)
        gone = before.alias("o").join(new.alias("n"), same_key(schema, "o", "n"), "left_anti")
        at = {envelope.DELETED_AT: moment.time, envelope.LSN: sql.lit(moment.lsn), envelope.TS: moment.time}
        lived = sql.col(envelope.DELETED_AT).isNull()
        kept = gone.select(
            *(
                (sql.when(lived, at[name]).otherwise(sql.col(name)) if name in at else sql.col(quote(name)))
                .cast(kind)
                .alias(name)
                for name, kind in columns
            )
        )
        return new.select(*(quote(name) for name, _ in columns)).unionByName(kept)

    def expires(self) -> Expiry | None:
        return Expiry(self.sign, self.retention) if self.retention is not None else None

    def present(self, frame: DataFrame) -> DataFrame:
        return frame.where(sql.col(envelope.DELETED_AT).isNull())
