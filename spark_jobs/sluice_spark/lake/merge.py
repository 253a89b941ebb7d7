"""The text of the one statement that carries a folded window into a Delta table.

Owns: a row is found by its key at the start of the window, null-safe where a key value may be
marked instead of typed; a value that was not sent keeps the lake's; a row that should be there and
is not, while a value of it was not sent, fails the statement instead of becoming NULL. Clauses
exist only for what occurs. Names of the source are quoted identifiers, and values are digits:
nothing of the source is read as SQL. Pure text: no session, no data but key ranges. (Delta: Table
deletes, updates, and merges.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH
from sluice_spark.fold.ranges import KeyRanges

NO_BASE_ROW = "sluice: a value was not sent and the lake has no row to keep it from"
"""What the statement raises, to be recognised in Spark's error."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What the statement must do. `lake_columns` are the target's metadata columns (a subset of
    LSN, TS, SPECIAL).
    """

    schema: TableSchema
    kept: tuple[ColumnSchema, ...]
    metadata: tuple[str, ...]
    deletes: bool
    upserts: bool
    unmatched: bool
    ranges: KeyRanges = field(default_factory=KeyRanges)

    def plus(self, other: "MergePlan") -> "MergePlan":
        """One statement for the rows of both."""
        return replace(
            self,
            kept=tuple(column for column in self.schema.columns if column in self.kept or column in other.kept),
            deletes=self.deletes or other.deletes,
            upserts=self.upserts or other.upserts,
            unmatched=self.unmatched or other.unmatched,
            ranges=self.ranges.plus(other.ranges),
        )


def quote(name: str) -> str:
    """`name` as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """`value` as a string that has nothing to escape: the digits of its bytes. Spark makes it an
    ordinary literal before it looks for files to skip.
    """
    return f"CAST({binary_literal(value.encode())} AS STRING)"


def binary_literal(value: bytes) -> str:
    """`value` as a BINARY."""
    return f"X'{value.hex()}'"


def metadata_columns(schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
    """The columns that a mirror table has after the source's own."""
    special = (envelope.SPECIAL,) if any(column.lake.special for column in schema.columns) else ()
    return ((envelope.LSN, envelope.TS) if wanted else ()) + special


def merge_text(plan: MergePlan, *, target: str, source: str) -> str:
    """MERGE of the view `source` into the table expression `target`."""
    lines = [f"MERGE INTO {target} AS t USING {source} AS s ON {' AND '.join(_conditions(plan))}"]
    if plan.deletes:
        lines.append(f"WHEN MATCHED{f' AND s.{quote(DELETED)}' if plan.upserts else ''} THEN DELETE")
    if plan.upserts:
        names = [*(column.name for column in plan.schema.columns), *plan.metadata]
        assignments = ", ".join(f"t.{quote(name)} = {_updated(plan, name)}" for name in names)
        lines.append(f"WHEN MATCHED THEN UPDATE SET {assignments}")
        values = ", ".join(_inserted(plan, name) for name in names)
        alive = f" AND NOT s.{quote(DELETED)}" if plan.deletes else ""
        lines.append(f"WHEN NOT MATCHED{alive} THEN INSERT ({', '.join(map(quote, names))}) VALUES ({values})")
    return "\n".join(lines)


def _conditions(plan: MergePlan) -> list[str]:
    conditions = [f"s.{quote(MATCH)}"] if plan.unmatched else []
    for position, column in enumerate(plan.schema.key_columns):
        here, origin = f"t.{quote(column.name)}", f"s.{quote(f'{KEY}{position}')}"
        if column.lake.special:
            text = f"element_at(t.{quote(envelope.SPECIAL)}, {literal(column.name)})"
            conditions += [f"{here} <=> {origin}", f"{text} <=> s.{quote(f'{KEY_SPECIAL}{position}')}"]
        else:
            conditions.append(f"{here} = {origin}")
    return [*conditions, *_within(plan.ranges, plan.schema)]


def _keep(plan: MergePlan, name: str) -> str:
    return next((f"s.{quote(f'{KEEP}{column.attnum}')}" for column in plan.kept if column.name == name), "")


def _updated(plan: MergePlan, name: str) -> str:
    if name == envelope.SPECIAL:
        return _merged_special(plan)
    keep = _keep(plan, name)
    return f"CASE WHEN {keep} THEN t.{quote(name)} ELSE s.{quote(name)} END" if keep else f"s.{quote(name)}"


def _merged_special(plan: MergePlan) -> str:
    mine = f"s.{quote(envelope.SPECIAL)}"
    kept = [column for column in plan.kept if column.lake.special]
    if not kept:
        return mine
    stays = " OR ".join(f"({_keep(plan, column.name)} AND name = {literal(column.name)})" for column in kept)
    nothing = "CAST(map() AS MAP<STRING, STRING>)"
    merged = (
        f"map_concat(coalesce({mine}, {nothing}), map_filter(coalesce(t.{quote(envelope.SPECIAL)}, "
        f"{nothing}), (name, text) -> {stays}))"
    )
    return f"CASE WHEN size({merged}) = 0 THEN NULL ELSE {merged} END"


def _inserted(plan: MergePlan, name: str) -> str:
    keep = _keep(plan, name)
    return (
        f"CASE WHEN {keep} THEN raise_error({literal(NO_BASE_ROW)}) ELSE s.{quote(name)} END"
        if keep
        else f"s.{quote(name)}"
    )


def _within(ranges: KeyRanges, schema: TableSchema) -> list[str]:
    """Conditions on the target alone that every key of the window meets."""
    parts = []
    for column in schema.key_columns:
        name = f"t.{quote(column.name)}"
        if column.name in ranges.integers:
            starts, ends = ranges.integers[column.name]
            parts.append(
                "("
                + " OR ".join(
                    f"{name} BETWEEN {low}L AND {high}L"
                    for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
                )
                + ")"
            )
        elif column.name in ranges.texts:
            low, high = ranges.texts[column.name]
            parts.append(f"{name} BETWEEN {literal(low)} AND {literal(high)}")
    return parts


def spark_ddl(columns: Sequence[tuple[str, str]]) -> str:
    """A schema in Spark's own spelling."""
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)
