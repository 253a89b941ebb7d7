"""Whether the lake can follow a change of a table's shape: the rules that ingest asks before it
writes in a new schema version, and those that the applier asks before it applies one. Pure.

Invariant: only additions of columns are followed. Any other difference makes the table stale by
name, because rows already in the lake would no longer mean what the source means. `diff_schema`
knows the catalog and sees what the stream does not announce; `added_columns` knows nothing but the
versions in the manifest. (PostgreSQL: ALTER TABLE. Delta: Update table schema.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from sluice.contract import envelope
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """`identity` means that only the old rows' columns changed: a new version, the same lake
    columns. `reason` explains `unsupported`.
    """

    kind: Literal["same", "identity", "added_columns", "unsupported"]
    reason: str = ""


def diff_schema(
    old: TableSchema, new: TableSchema, *, facts: TableFacts | None = None, old_relfilenode: int = 0
) -> SchemaDiff:
    """What the step from `old` to `new` means for the lake table.

    `old_relfilenode` is the table's storage when `old` came into force (0: not known): a column
    that was added together with a rewrite has values in old rows that nothing announces.
    """
    if (old.schema_name, old.table_name) != (new.schema_name, new.table_name):
        return _unsupported(f"the table was renamed from {old.qualified_name} to {new.qualified_name}")
    reason = _lost_or_changed(old, new)
    if reason:
        return _unsupported(reason)
    if [column.name for column in old.key_columns] != [column.name for column in new.key_columns]:
        return _unsupported("the key changed: rows are told apart by other columns than before")
    added = tuple(column for column in new.columns if old.column(column.name) is None)
    newest = max((column.attnum for column in old.columns), default=0)
    for column in added:
        if 0 < column.attnum < newest:
            return _unsupported(
                f"column {column.name} was there before it was published: older rows hold values in "
                "it that were not sent"
            )
        reason = _added_with_hidden_values(column, facts, old_relfilenode)
        if reason:
            return _unsupported(reason)
    if added:
        return SchemaDiff("added_columns")
    old_identity = (old.replica_identity, [column.name for column in old.identity_columns])
    if old_identity != (new.replica_identity, [column.name for column in new.identity_columns]):
        return SchemaDiff("identity")
    return SchemaDiff("same")


def _lost_or_changed(old: TableSchema, new: TableSchema) -> str:
    by_attnum = {column.attnum: column for column in new.columns if column.attnum}
    for column in old.columns:
        now = new.column(column.name)
        if now is None:
            renamed = by_attnum.get(column.attnum)
            if renamed is not None:
                return f"column {column.name} was renamed to {renamed.name}"
            return f"column {column.name} was dropped"
        if (column.type_oid, column.typmod) != (now.type_oid, now.typmod) or column.lake != now.lake:
            return f"column {column.name} changed its type from {column.type_name} to {now.type_name}"
        if column.attnum and now.attnum and column.attnum != now.attnum:
            return f"column {column.name} was dropped and added again"
    return ""


def _added_with_hidden_values(column: ColumnSchema, facts: TableFacts | None, old_relfilenode: int) -> str:
    if column.missing is not None:
        return ""
    now = (
        next((item for item in facts.columns if item.attnum == column.attnum), None)
        if facts and column.attnum
        else None
    )
    if facts is None or now is None:
        return f"column {column.name} was added and the catalog no longer says what older rows hold in it"
    in_leaves = facts.relkind == "p" and (
        now.has_default or bool(now.generated) or any(column.name in leaf.missing for leaf in facts.children)
    )
    rewritten = in_leaves or (facts.relkind != "p" and old_relfilenode not in (0, facts.relfilenode))
    if rewritten:
        return (
            f"the table was rewritten when column {column.name} was added: older rows hold values in it "
            "that the stream does not carry"
        )
    return ""


def _unsupported(reason: str) -> SchemaDiff:
    return SchemaDiff("unsupported", reason=reason)


def added_columns(versions: Mapping[int, TableSchema], *, since: int, until: int) -> tuple[ColumnSchema, ...]:
    """The columns that versions `since`+1 to `until` add. Raises UnsupportedChange when they do
    anything else.
    """
    added: list[ColumnSchema] = []
    for before, after in pairwise([versions[number] for number in sorted(versions) if since <= number <= until]):
        added += _added(before, after)
    return tuple(added)


def refuse_alike(schema: TableSchema) -> None:
    """Delta does not tell names apart by case."""
    if len({envelope.folded(column.name) for column in schema.columns}) != len(schema.columns):
        raise UnsupportedChange(
            f"{schema.qualified_name}: two columns differ by case only, which Delta does not support"
        )


def _added(before: TableSchema, after: TableSchema) -> list[ColumnSchema]:
    where = f"{after.qualified_name} in schema version {after.version}"
    refuse_alike(after)
    old = {column.attnum: column for column in before.columns}
    new = {column.attnum: column for column in after.columns}
    if len(new) != len(after.columns) or len(old) != len(before.columns):
        raise UnsupportedChange(f"{where}: the source no longer had its columns, so they cannot be matched")
    for attnum, column in old.items():
        now = new.get(attnum)
        if now is None:
            raise UnsupportedChange(f"{where}: column {column.name!r} was dropped")
        if now.name != column.name:
            raise UnsupportedChange(f"{where}: column {column.name!r} was renamed to {now.name!r}")
        if now.lake.sql != column.lake.sql:
            raise UnsupportedChange(
                f"{where}: column {column.name!r} changed from {column.type_name} to {now.type_name}"
            )
        if now.key != column.key:
            raise UnsupportedChange(f"{where}: the key changed at column {column.name!r}")
    if (before.replica_identity == "f") != (after.replica_identity == "f") and not after.key_columns:
        raise UnsupportedChange(f"{where}: the replica identity of a table without a key changed")
    fresh = [column for attnum, column in new.items() if attnum not in old]
    if any(column.key for column in fresh):
        raise UnsupportedChange(f"{where}: the key gained a column")
    return fresh
