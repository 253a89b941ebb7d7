"""From a relation on the wire and the facts of the catalog to the table's schema, and what a change
of schema means. Pure.

Invariant: the columns and their order are the wire's; the catalog only adds what the wire cannot
say (attnum, base types of domains, the primary key, the value that older rows have). A change that
the lake table cannot follow exactly is `unsupported`, with the reason. (PostgreSQL: pg_attribute;
ALTER TABLE.)
"""

from dataclasses import dataclass, replace
from typing import Literal

from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.types import lake_type, sent_form
from sluice.protocol.messages import RelationColumn, RelationVersion
from sluice.source.catalog import ColumnFacts, TableFacts


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """`identity` means that only the old rows' columns changed: a new version, the same lake
    columns. `reason` explains `unsupported`.
    """

    kind: Literal["same", "identity", "added_columns", "unsupported"]
    added: tuple[ColumnSchema, ...] = ()
    reason: str = ""


def build_schema(
    relation: RelationVersion, facts: TableFacts | None, previous: TableSchema | None, version: int
) -> TableSchema:
    """The schema of a relation version. `facts` is None when the table is gone from the catalog,
    `previous` when this is its first schema.
    """
    catalog = {column.name: column for column in facts.columns} if facts else {}
    columns = tuple(_column(column, catalog.get(column.name), previous) for column in relation.columns)
    keys = _key_names(relation, facts, previous)
    return TableSchema(
        table_id=previous.table_id if previous else str(relation.oid),
        version=version,
        schema_name=relation.schema,
        table_name=relation.name,
        replica_identity=relation.replica_identity,
        columns=tuple(replace(column, key=column.name in keys) for column in columns),
    )


def relation_of(facts: TableFacts) -> RelationVersion:
    """The relation that the server would send for a table as the catalog has it now: for tables
    that are copied before they change.
    """
    return RelationVersion(
        oid=facts.oid,
        schema=facts.schema,
        name=facts.name,
        replica_identity=facts.replica_identity,
        columns=tuple(
            RelationColumn(column.name, column.type_oid, column.typmod, column.in_identity)
            for column in facts.sent_columns
        ),
    )


def relation_sent_as(schema: TableSchema) -> RelationVersion:
    """The relation version that `schema` was built from."""
    columns = tuple(
        RelationColumn(column.name, column.type_oid, column.typmod, column.identity) for column in schema.columns
    )
    return RelationVersion(
        int(schema.table_id), schema.schema_name, schema.table_name, schema.replica_identity, columns
    )


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
        return SchemaDiff("added_columns", added)
    old_identity = (old.replica_identity, [column.name for column in old.identity_columns])
    if old_identity != (new.replica_identity, [column.name for column in new.identity_columns]):
        return SchemaDiff("identity")
    return SchemaDiff("same")


def _column(column: RelationColumn, now: ColumnFacts | None, previous: TableSchema | None) -> ColumnSchema:
    before = previous.column(column.name) if previous else None
    if before is not None and (before.type_oid, before.typmod) != (column.type_oid, column.typmod):
        before = None
    if now is not None and (now.type_oid, now.typmod) == (column.type_oid, column.typmod):
        return ColumnSchema(
            name=column.name,
            attnum=now.attnum,
            type_oid=column.type_oid,
            typmod=column.typmod,
            type_name=now.type_name,
            lake=lake_type(now.base_type_oid, now.base_typmod),
            identity=column.identity,
            missing=now.missing,
            sent=sent_form(now.base_type_oid, now.base_typmod, is_enum=now.is_enum),
        )
    if before is not None:
        return ColumnSchema(
            name=column.name,
            attnum=before.attnum,
            type_oid=column.type_oid,
            typmod=column.typmod,
            type_name=before.type_name,
            lake=before.lake,
            identity=column.identity,
            missing=before.missing,
            sent=before.sent,
        )
    return ColumnSchema(
        name=column.name,
        attnum=0,
        type_oid=column.type_oid,
        typmod=column.typmod,
        type_name=f"type {column.type_oid}",
        lake=lake_type(column.type_oid, column.typmod),
        identity=column.identity,
        sent=sent_form(column.type_oid, column.typmod, is_enum=False),
    )


def _key_names(relation: RelationVersion, facts: TableFacts | None, previous: TableSchema | None) -> set[str]:
    """The columns by which old rows are found. Deletes send the identity's columns and no others,
    so an identity index comes before the primary key.
    """
    sent = {column.name for column in relation.columns}
    flagged = {column.name for column in relation.columns if column.identity}
    if relation.replica_identity == "i" or (relation.replica_identity == "d" and flagged):
        return flagged
    if facts is not None:
        primary = {column.name for column in facts.columns if column.in_primary_key}
        return primary if primary <= sent else set()
    before = {column.name for column in previous.key_columns} if previous else set()
    return before if before <= sent else set()


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


def same_shape(schema: TableSchema, relation: RelationVersion) -> bool:
    """Whether rows of `relation` are rows of `schema`, as far as the wire can tell. The name is no
    part of it.
    """
    ours = relation_sent_as(schema)
    return (ours.replica_identity, ours.columns) == (relation.replica_identity, relation.columns)
