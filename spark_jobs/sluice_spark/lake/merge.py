"""The text of the MERGE statements that carry a folded window into a Delta table.

Owns: a row is found by its key at the start of the window, null-safe where a key value may be
marked instead of typed. A value that was not sent keeps the lake's value. Where a value was not
sent and the lake has no such row, the statement fails; the value never becomes NULL. A statement
has only the clauses that the window needs. Pure text: no session, no data but key ranges. (Delta:
Table deletes, updates, and merges.)
"""

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH
from sluice_spark.fold.ranges import KeyRanges
from sluice_spark.lake.plan import MergePlan, RowsMergePlan
from sluice_spark.lake.sql import literal, quote

NO_BASE_ROW = "sluice: a value was not sent and the lake has no row to keep it from"
"""What the statement raises, to be recognised in Spark's error."""


def table_at(path: str) -> str:
    """The Delta table at `path`, as statements name it."""
    return f"delta.{quote(path)}"


def merge_text(plan: MergePlan, *, target: str, source: str) -> str:
    """MERGE of the view `source` into the table expression `target`."""
    lines = [f"MERGE INTO {target} AS t USING {source} AS s ON {' AND '.join(key_conditions(plan))}"]
    if plan.settlement is not None:
        return "\n".join([*lines, *_settled_clauses(plan)])
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


def _settled_clauses(plan: MergePlan) -> list[str]:
    """The rows that were found go, and those that do not look for any come."""
    names = [*(column.name for column in plan.schema.columns), *plan.metadata]
    values = ", ".join(f"s.{quote(name)}" for name in names)
    clauses = [
        "WHEN MATCHED THEN DELETE",
        f"WHEN NOT MATCHED AND NOT s.{quote(MATCH)} THEN INSERT ({', '.join(map(quote, names))}) VALUES ({values})",
    ]
    if plan.sweep is not None:
        assigned = [(name, value) for name, value in plan.sweep.assignments if name in names]
        assignments = ", ".join(f"t.{quote(name)} = {value}" for name, value in assigned)
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {plan.sweep.condition} THEN UPDATE SET {assignments}")
    return clauses


def found_text(plan: MergePlan, *, target: str, source: str, number: str) -> str:
    """The rows of `target` that the rows of the view `source` look for, each with the `number` of that row."""
    conditions = " AND ".join(key_conditions(plan))
    return f"SELECT s.{quote(number)}, t.* FROM {target} AS t JOIN {source} AS s ON {conditions}"


def expire_text(target: str, column: str, *, before_us: int) -> str:
    """Removes rows whose time in `column` is before that. A DELETE that finds nothing would leave no marker."""
    return (
        f"MERGE INTO {target} AS t USING (SELECT timestamp_micros({before_us}L) AS before) AS s "
        f"ON t.{quote(column)} < s.before WHEN MATCHED THEN DELETE"
    )


def key_conditions(plan: MergePlan) -> list[str]:
    """When the row `s` of a window is the row `t` of the lake."""
    conditions = [f"s.{quote(MATCH)}"] if plan.unmatched else []
    if plan.only:
        conditions.append(f"t.{quote(plan.only)}")
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


def rows_merge_text(plan: RowsMergePlan, *, target: str, source: str) -> str:
    """MERGE of the view `source` into `target`: removes every copy of the rows that match, adds the
    rows that do not.
    """
    names = [*(column.name for column in plan.schema.columns), *plan.metadata]
    return (
        f"MERGE INTO {target} AS t USING {source} AS s ON s.{quote(MATCH)} AND {equal_rows(plan.schema)}\n"
        "WHEN MATCHED THEN DELETE\n"
        f"WHEN NOT MATCHED AND NOT s.{quote(MATCH)} THEN INSERT ({', '.join(map(quote, names))}) "
        f"VALUES ({', '.join(f's.{quote(name)}' for name in names)})"
    )


def special_text_column(column: ColumnSchema) -> str:
    """The working column with the marked text of `column`."""
    return f"_sluice_row_special_{column.attnum}"


def equal_rows(schema: TableSchema) -> str:
    """The condition that the rows `t` and `s` are equal in every column; `s` has the marked texts of
    `special_text_column` as well.
    """
    conditions = ["true"]
    for column in schema.columns:
        here, there = f"t.{quote(column.name)}", f"s.{quote(column.name)}"
        if "float" in column.lake.sql or "double" in column.lake.sql:
            # As text 0.0 and -0.0 differ, as they do in the source's text.
            here, there = f"CAST({here} AS STRING)", f"CAST({there} AS STRING)"
        conditions.append(f"{here} <=> {there}")
        if column.lake.special:
            text = f"element_at(t.{quote(envelope.SPECIAL)}, {literal(column.name)})"
            conditions.append(f"{text} <=> s.{quote(special_text_column(column))}")
    return " AND ".join(conditions)
