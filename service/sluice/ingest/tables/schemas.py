"""From a relation on the wire and the facts of the catalog to the table's schema. Pure.

Invariant: the columns and their order are the wire's; the catalog only adds what the wire cannot
say (attnum, base types of domains, the primary key, the value that older rows have). (PostgreSQL:
pg_attribute; ALTER TABLE.)
"""

from dataclasses import replace

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.types import binary_form, lake_type
from sluice.protocol.messages import RelationColumn, RelationVersion


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
    that are read before they change.
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
            binary_form=binary_form(now.base_type_oid, now.base_typmod, is_enum=now.is_enum),
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
            binary_form=before.binary_form,
        )
    return ColumnSchema(
        name=column.name,
        attnum=0,
        type_oid=column.type_oid,
        typmod=column.typmod,
        type_name=f"type {column.type_oid}",
        lake=lake_type(column.type_oid, column.typmod),
        identity=column.identity,
        binary_form=binary_form(column.type_oid, column.typmod, is_enum=False),
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


def same_shape(schema: TableSchema, relation: RelationVersion) -> bool:
    """Whether rows of `relation` are rows of `schema`, as far as the wire can tell. The name is no
    part of it.
    """
    ours = relation_sent_as(schema)
    return (ours.replica_identity, ours.columns) == (relation.replica_identity, relation.columns)
