"""What a kind of lake table is: the contract between the steps of the applier and the files of this folder.

A kind says what a lake table holds. Nothing outside of this folder compares kinds or knows their names; what is not
asked here is alike for all of them. An object of a kind has no state, and executors get it as it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from sluice.contract import envelope
from sluice.contract.entries import Opened, Segment
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.schema import TableSchema
from sluice.errors import ManifestCorrupt, UnsupportedChange
from sluice.manifest.values import TableState
from sluice_spark.fold.counted import Counted
from sluice_spark.fold.fold import Folded, in_order, unchanged_flags
from sluice_spark.fold.spill import Versioned
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows, SparkHandover
from sluice_spark.lake.table import LakeTable
from sluice_spark.read.changes import unite

Origins = Mapping[int, tuple[str, int]]
"""Where transactions came from, by commit end LSN."""


@dataclass(frozen=True, slots=True)
class Target:
    """One lake table in the schema version that is applied now. `removals_sent` says that no row of
    the lake has a key that is inserted.
    """

    lake: LakeTable
    handover: SparkHandover
    schema: TableSchema
    removals_sent: bool
    metadata: bool = True


@dataclass(frozen=True, slots=True)
class Moment:
    """When a snapshot was taken."""

    lsn: int
    time_us: int

    @property
    def time(self) -> Column:
        """In an expression."""
        return sql.timestamp_micros(sql.lit(self.time_us))


@dataclass(frozen=True, slots=True)
class Expiry:
    """Rows go whose time in `column` is more than `seconds` ago."""

    column: str
    seconds: float


class Kind(ABC):
    """What lake tables of a kind hold, and what becomes of changes.

    `name` is what people see. `sign` is a column that only tables of this kind have, by which they are recognised
    (empty: tables without the sign of any other kind). `carried` are columns of the envelope that a row has from its
    last change, besides LSN and commit time.

    `keeps_changes`: see `sluice.contract.lake_kinds.LakeKind`. `keeps_rows` says that a snapshot which comes later
    does not replace the rows that there are: `resynced` says what becomes of both. `current` is a boolean column: rows
    in which it is true have a key of their own (empty: all rows have). `reads_lake` says that a plan
    follows from the lake too, not from the changes alone.

    `not_in_parts` says why a snapshot cannot be brought part by part while it is read (empty: it can), and
    `only_by_statement` why a window that changes or removes rows of the lake is committed by a statement of Spark
    alone (empty: it can be committed in every way).
    """

    name: ClassVar[str]
    sign: ClassVar[str] = ""
    carried: ClassVar[tuple[str, ...]] = ()
    keeps_changes: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = False
    current: ClassVar[str] = ""
    reads_lake: ClassVar[bool] = False
    not_in_parts: ClassVar[str] = ""
    only_by_statement: ClassVar[str] = ""

    def configured(self, target: LakeTarget) -> "Kind":
        """This kind as `target` asks for it: with the settings of a target that its line in `lake_kinds` takes."""
        return self

    def of(self, schema: TableSchema) -> "Kind":
        """The kind for a source table of `schema` when this one is configured."""
        return self

    @property
    def variants(self) -> "tuple[Kind, ...]":
        """What this kind also is, with another sign, when it is configured otherwise."""
        return ()

    def require(self, schema: TableSchema) -> None:  # noqa: B027 - most kinds take every table
        """Raises UnsupportedChange when there can be no lake table of this kind for a table of `schema`."""

    # Columns.

    def metadata(self, schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
        """The columns after the source's own. LSN and commit time are there if they are `wanted`, by
        `lake.metadata_columns`; marked values where a column can have any.
        """
        order = (envelope.LSN, envelope.TS) if wanted else ()
        special = (envelope.SPECIAL,) if any(column.lake.special for column in schema.columns) else ()
        return (*self.carried, *order, *special)

    def columns(self, schema: TableSchema, *, metadata: bool) -> list[tuple[str, str]]:
        """All columns of a lake table (name, Spark type), in order."""
        own = [(column.name, column.lake.sql) for column in schema.columns]
        return own + [(name, envelope.LAKE_TYPES[name]) for name in self.metadata(schema, wanted=metadata)]

    # Windows: changes -> net rows -> plan.

    def united(self, parts: Iterable[Versioned], schema: TableSchema, origins: Origins) -> pa.Table:
        """Changes of several schema versions as changes of `schema`, the newest."""
        return unite(parts, schema)

    @abstractmethod
    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        """Whether the changes of these segments become rows that are appended, as `added` says, whatever
        the lake holds: then nothing is folded.
        """

    def added(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """The rows to append for united changes that `only_adds`: where the manifest calls all of them inserted,
        these. Raises ManifestCorrupt, UnsupportedChange.
        """
        if not pc.all(pc.equal(rows[envelope.OP], envelope.OP_INSERT)).as_py() or unchanged_flags(rows, schema):
            raise ManifestCorrupt(
                f"{schema.qualified_name}: a segment that should hold inserted rows only holds other changes"
            )
        refuse_unplaced(rows, schema)
        return rows

    @abstractmethod
    def net(
        self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True
    ) -> Folded | Counted:
        """What united changes make of the rows that there are, a TRUNCATE among them included: rows by key that come
        and go, or how many more or fewer there are of each distinct row. Raises UnsupportedChange.
        """

    @abstractmethod
    def plan(self, target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool) -> CommitPlan | None:
        """The commit for the united changes in `portions`, whose rows go to `pieces`. No two portions touch the
        same row; `keyed` says that there may be several. None when there is nothing to commit: what cancels out
        still does when it is applied again together with later changes.
        """

    def appended(
        self, portions: Iterable[pa.Table], pieces: HeldRows, columns: Sequence[tuple[str, str]]
    ) -> CommitPlan | None:
        """The commit of a window whose rows are all new."""
        for rows in portions:
            pieces.add(in_order(rows).select([name for name, _ in columns]))
        return CommitPlan("append", tuple(columns)) if pieces.rows else None

    # Snapshots.

    def arrived(self, rows: pa.Table) -> pa.Table:
        """Rows of a snapshot, with the columns of the lake table that follow from those that they have; others that
        they lack are NULL.
        """
        return rows

    def resynced(
        self, old: DataFrame, new: DataFrame, schema: TableSchema, columns: Sequence[tuple[str, str]], moment: Moment
    ) -> DataFrame:
        """The lake table with `columns` (name, Spark type) when the rows `new` of a snapshot come to `old`, those that
        it has, in the same columns. Raises UnsupportedChange.
        """
        return new

    # Time.

    def expires(self) -> Expiry | None:
        """Which rows are removed when they have been there long enough, None: none ever."""
        return None

    # Comparison with the source.

    def present_net(self, rows: pa.Table, schema: TableSchema, *, removals_sent: bool) -> Folded | Counted:
        """What united changes make of the rows that are `present`."""
        return self.net(rows, schema, keyed=True, removals_sent=removals_sent)

    def not_comparable(self, schema: TableSchema) -> str:
        """Why `sluice verify` cannot compare such a table with the source, empty when it can."""
        return ""

    def present(self, frame: DataFrame) -> DataFrame:
        """Of all rows of a lake table those that stand for one of the source."""
        return frame


def refuse_unplaced(rows: pa.Table, schema: TableSchema) -> None:
    """A marked value must have a column to be kept in."""
    if not any(column.lake.special for column in schema.columns) and rows[envelope.SPECIAL].null_count != len(rows):
        raise UnsupportedChange(
            f"{schema.qualified_name}: a value was marked although every column's type holds all values"
        )


def removals_are_sent(opened: Opened | None, state: TableState) -> bool:
    """Whether the stream has every change that takes a key away from a row, so that a key that is
    inserted is free in the lake too.

    A single change does not say so: changes that a publication leaves out, or that replication
    brought to a source whose `origin` is `none`, are in no entry. A table whose publication changes
    becomes stale, and so does one that was followed with another `origin`: what holds now has held
    since the snapshot.
    """
    return opened is not None and opened.origin == "any" and set("iudt") <= set(state.publishes)
