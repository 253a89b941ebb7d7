"""Every version that the rows of a table had, and from which commit to which it was the current one.

Owns that the versions which are current at an LSN are the rows of the source at that LSN, in the tracked columns
always, and that nothing that comes later changes a version which ended.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.lake_kinds import KINDS
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice.lsn import show
from sluice_spark.fold.fold import Folded, unchanged_flags
from sluice_spark.fold.settle import refuse_without_key
from sluice_spark.fold.versions import first_versions, versions
from sluice_spark.kinds.kind import Moment, refuse_unplaced
from sluice_spark.kinds.settled import Settled
from sluice_spark.lake.resync import PLACE, placed, same_key, same_values
from sluice_spark.lake.sql import quote
from sluice_spark.read.changes import only_inserts

_HERE = "_sluice_here"


@dataclass(frozen=True, slots=True)
class History(Settled):
    """Versions of rows by key. Another value in one of the columns `track` (empty: all) makes one."""

    track: tuple[str, ...] = ()
    name: ClassVar[str] = "history"
    sign: ClassVar[str] = envelope.VALID_FROM
    current: ClassVar[str] = envelope.IS_CURRENT

    def configured(self, target: LakeTarget) -> "History":
        return History(target.track)

    def require(self, schema: TableSchema) -> None:
        refuse_without_key(schema, "a history")
        self.tracked(schema)

    def tracked(self, schema: TableSchema) -> tuple[ColumnSchema, ...]:
        """Raises UnsupportedChange for a name that the table does not have."""
        names = {column.name for column in schema.columns}
        unknown = [name for name in self.track if name not in names]
        if unknown:
            raise UnsupportedChange(
                f"{schema.qualified_name}: its history tracks column {unknown[0]!r}, which the table does not have;"
                " correct `track` in the configuration, start the applier again, and resync the table"
            )
        return tuple(column for column in schema.columns if not self.track or column.name in self.track)

    def metadata(self, schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
        # They are what a history is, so none of them is left out.
        special = any(column.lake.special for column in schema.columns)
        return tuple(name for name in KINDS[self.name].adds if special or name != envelope.SPECIAL)

    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        return bool(schema.key_columns) and removals_sent and only_inserts(segments)

    def added(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        return first_versions(Settled.added(self, rows, schema))

    def net(self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True) -> Folded:
        self.require(schema)
        inserted = set(rows[envelope.OP].unique().to_pylist()) <= {envelope.OP_INSERT}
        if removals_sent and not keyed and inserted and not unchanged_flags(rows, schema):
            return Folded(self.added(rows, schema), append=True)
        folded = versions(rows, schema, removals_sent=removals_sent, tracked=self.tracked(schema))
        refuse_unplaced(folded.rows, schema)
        return folded

    def arrived(self, rows: pa.Table) -> pa.Table:
        return first_versions(rows)

    def resynced(
        self, old: DataFrame, new: DataFrame, schema: TableSchema, columns: Sequence[tuple[str, str]], moment: Moment
    ) -> DataFrame:
        _require_order(old, schema, moment)
        here = sql.lit(True).alias(_HERE)  # noqa: FBT003
        # By another key than before, versions of several rows may be those of one: one of them goes on at most.
        current = placed(old.where(sql.col(envelope.IS_CURRENT)), schema, newest=envelope.FROM_LSN)
        meets = same_key(schema, "o", "n") & (_of("o", PLACE) == 1)
        both = current.select("*", here).alias("o").join(new.select("*", here).alias("n"), meets, "full_outer")
        was, comes = (sql.col(f"{side}.{_HERE}").isNotNull() for side in ("o", "n"))
        since_then = _of("o", envelope.FROM_LSN) >= moment.lsn
        goes_on = was & comes & (same_values(self.tracked(schema), "o", "n") | since_then)
        since = {
            envelope.FROM_LSN: sql.when(goes_on, _of("o", envelope.FROM_LSN)).otherwise(sql.lit(moment.lsn)),
            envelope.VALID_FROM: sql.when(goes_on, _of("o", envelope.VALID_FROM)).otherwise(moment.time),
        }
        until = {
            envelope.TO_LSN: sql.lit(moment.lsn),
            envelope.VALID_TO: moment.time,
            envelope.IS_CURRENT: sql.lit(False),  # noqa: FBT003
        }
        live = both.where(comes).select(*_columns("n", columns, since))
        closed = both.where(was & ~goes_on & ~since_then).select(*_columns("o", columns, until))
        past = old.where(~sql.col(envelope.IS_CURRENT))
        return past.unionByName(closed).unionByName(live)

    def present(self, frame: DataFrame) -> DataFrame:
        return frame.where(sql.col(envelope.IS_CURRENT))


KIND = History()


def _require_order(old: DataFrame, schema: TableSchema, moment: Moment) -> None:
    """Raises UnsupportedChange when a version is later than the snapshot that comes: what comes then would be ordered
    before it.
    """
    latest = (sql.max(sql.col(name)) for name in (envelope.FROM_LSN, envelope.TO_LSN))
    newest = old.select(sql.greatest(*latest)).first()
    if newest is not None and newest[0] is not None and newest[0] > moment.lsn:
        raise UnsupportedChange(
            f"{schema.qualified_name}: its history has positions through {show(newest[0])}, and the snapshot was read "
            f"at {show(moment.lsn)}: they are of another server, or of a time that was taken back, and would tell a "
            "wrong order; give the target another name, which begins a table of its own beside this one"
        )


def _of(side: str, name: str) -> Column:
    return sql.col(f"{side}.{quote(name)}")


def _columns(side: str, columns: Sequence[tuple[str, str]], other: dict[str, Column]) -> list[Column]:
    return [other.get(name, _of(side, name)).cast(kind).alias(name) for name, kind in columns]
