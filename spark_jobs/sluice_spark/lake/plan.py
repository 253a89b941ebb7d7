"""What one commit does to a lake table, as a value.

A kind decides the plan; `lake.table` executes it. A plan says which rows are added, kept or
removed. It holds no session, no statement text and no rows: those are handed over beside it, with
the columns that the plan names.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import DELETED, MATCH, Folded
from sluice_spark.fold.ranges import KeyRanges
from sluice_spark.fold.settlement import Settlement, Sweep

Columns = tuple[tuple[str, str], ...]
"""(name, Spark type), in order."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Net changes by key. `metadata` names the lake table's metadata columns, `kept` the columns of which a row may
    keep the lake's value. `deletes`, `upserts` and `unmatched` say which kinds of rows occur; every key is in `ranges`.

    With a `settlement` the rows of the lake that are found go, and what it makes of them and of the net changes comes.
    `sweep` is for the rows that are not found.
    """

    schema: TableSchema
    kept: tuple[ColumnSchema, ...]
    metadata: tuple[str, ...]
    deletes: bool
    upserts: bool
    unmatched: bool
    ranges: KeyRanges = field(default_factory=KeyRanges)
    settlement: Settlement | None = None
    sweep: Sweep | None = None

    @property
    def only(self) -> str:
        """A boolean column of the lake: rows in which it is true are looked for (empty: all)."""
        return self.settlement.only if self.settlement is not None else ""

    @staticmethod
    def of(folded: Folded, schema: TableSchema, *, metadata: tuple[str, ...]) -> "MergePlan":
        """Which clauses the folded window needs."""
        if folded.settlement is not None:
            return MergePlan(
                schema,
                kept=(),
                metadata=metadata,
                deletes=True,
                upserts=True,
                unmatched=True,
                ranges=KeyRanges.of(folded.rows, schema) if len(folded.rows) else KeyRanges(),
                settlement=folded.settlement,
                sweep=folded.sweep,
            )
        deleted = folded.rows[DELETED].to_numpy()
        return MergePlan(
            schema,
            kept=folded.kept,
            metadata=metadata,
            deletes=bool(deleted.any()),
            upserts=bool((~deleted).any()),
            unmatched=not folded.rows[MATCH].to_numpy().all(),
            ranges=KeyRanges.of(folded.rows, schema),
        )

    def cheapest(self, files: Callable[[], int]) -> "MergePlan":
        """Without the ranges of keys where a table of so many `files` gains nothing by them."""
        if not self.ranges or (self.sweep is None and self.ranges.worth_their_cost(files=files())):
            return self
        return replace(self, ranges=KeyRanges())

    def plus(self, other: "MergePlan") -> "MergePlan":
        """One plan for the rows of both."""
        return replace(
            self,
            kept=tuple(column for column in self.schema.columns if column in self.kept or column in other.kept),
            deletes=self.deletes or other.deletes,
            upserts=self.upserts or other.upserts,
            unmatched=self.unmatched or other.unmatched,
            ranges=self.ranges.plus(other.ranges),
        )


@dataclass(frozen=True, slots=True)
class RowsMergePlan:
    """Net changes of a table without a key: every copy of the rows that match goes away, which
    are `removed` rows, and the rows that do not match are added.
    """

    schema: TableSchema
    metadata: tuple[str, ...]
    removed: int

    def require_removed(self, removed: int | None) -> None:
        """Raises UnsupportedChange unless the statement `removed` as many rows as were counted."""
        if removed != self.removed:
            raise UnsupportedChange(
                f"{self.schema.qualified_name}: a MERGE removed {removed} rows of the lake table, but {self.removed} "
                "equal ones had been counted",
                hint="resync the table, and please report it",
            )


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One commit: `action` with rows that have `columns`.

    "append" adds the rows, "overwrite" puts them in place of all that the table holds, and a merge
    matches them with the table's rows.
    """

    action: Literal["append", "overwrite"] | MergePlan | RowsMergePlan
    columns: Columns

    @property
    def lake_columns(self) -> tuple[str, ...]:
        """The columns that the lake table gets values of."""
        if isinstance(self.action, str):
            return tuple(name for name, _ in self.columns)
        return (*(column.name for column in self.action.schema.columns), *self.action.metadata)
