"""The text of the one statement that carries a folded window into a Delta table.

Owns: a row is found by its key at the start of the window, null-safe where a key value may be marked instead of typed; a value that was not sent keeps the
lake's; a row that should be there and is not, while a value of it was not sent, fails the statement instead of becoming NULL. Clauses exist only for
what occurs. Pure text: no session, no data but key ranges. (Delta: Table deletes, updates, and merges.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from service.contract import columns as envelope
from service.contract.schema import ColumnSchema, TableSchema
from spark_jobs.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH
from spark_jobs.identity import whole

NO_BASE_ROW = "sluice: a value was not sent and the lake has no row to keep it from"
"""What the statement raises, to be recognised in Spark's error."""

MAX_RANGES = 24
"""Delta prunes files per range; past a few dozen the planning costs more than the files."""
MAX_LITERAL_BYTES = 64
_INTEGERS = ("smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What the statement must do. `lake_columns` are the target's metadata columns (a subset of LSN, TS, SPECIAL)."""

    schema: TableSchema
    kept: tuple[ColumnSchema, ...]
    metadata: tuple[str, ...]
    deletes: bool
    upserts: bool
    unmatched: bool
    ranges: str = ""


def quote(name: str) -> str:
    """`name` as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """`value` as a string literal: backslashes and quotes are Spark's only special characters in one."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


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
    return [*conditions, plan.ranges] if plan.ranges else conditions


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
    merged = f"map_concat(coalesce({mine}, {nothing}), map_filter(coalesce(t.{quote(envelope.SPECIAL)}, {nothing}), (name, text) -> {stays}))"
    return f"CASE WHEN size({merged}) = 0 THEN NULL ELSE {merged} END"


def _inserted(plan: MergePlan, name: str) -> str:
    keep = _keep(plan, name)
    return f"CASE WHEN {keep} THEN raise_error({literal(NO_BASE_ROW)}) ELSE s.{quote(name)} END" if keep else f"s.{quote(name)}"


def key_ranges(rows: pa.Table, schema: TableSchema) -> str:
    """A condition on the target alone that every key in `rows` meets, so that Delta skips the files without them; empty when none can be given."""
    parts = []
    for position, column in enumerate(schema.key_columns):
        if column.lake.special or not len(rows):
            continue
        values = whole(rows[f"{KEY}{position}"])
        if column.lake.sql in _INTEGERS:
            parts.append(_integer_ranges(f"t.{quote(column.name)}", values.to_numpy(zero_copy_only=False)))
        elif column.lake.sql == "string" and position == 0:
            # The smallest and greatest text by bytes, as Spark and Delta's file statistics compare them.
            ends = pa.compute.min_max(values).as_py()
            low, high = ends["min"], ends["max"]
            if len(low.encode()) <= MAX_LITERAL_BYTES and len(high.encode()) <= MAX_LITERAL_BYTES:
                parts.append(f"t.{quote(column.name)} BETWEEN {literal(low)} AND {literal(high)}")
    return " AND ".join(parts)


def _integer_ranges(name: str, values: "np.typing.NDArray[np.int64]") -> str:
    distinct = np.unique(values.astype(np.int64))
    # Differences as unsigned numbers: the distance of the two ends of bigint does not fit a signed one.
    gaps = np.diff(distinct.view(np.uint64))
    cuts = np.sort(np.argsort(gaps, kind="stable")[::-1][: MAX_RANGES - 1]) if len(gaps) else np.array([], dtype=np.int64)
    cuts = cuts[gaps[cuts] > 1]
    starts, ends = distinct[np.concatenate([[0], cuts + 1])], distinct[np.concatenate([cuts, [len(distinct) - 1]])]
    return "(" + " OR ".join(f"{name} BETWEEN {low}L AND {high}L" for low, high in zip(starts.tolist(), ends.tolist(), strict=True)) + ")"


def spark_ddl(columns: Sequence[tuple[str, str]]) -> str:
    """A schema in Spark's own spelling."""
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)
