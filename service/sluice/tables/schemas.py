"""From a relation on the wire and the facts of the catalog to the table's schema. Pure.

Invariant: the columns and their order are the wire's; the catalog only adds what the wire cannot
say (attnum, base types of domains, the primary key, the value that older rows have). (PostgreSQL:
pg_attribute; ALTER TABLE.)
"""

from dataclasses import replace

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.evolution import Retyped, text_after, widens
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.types import binary_form, lake_type
from sluice.protocol.messages import RelationColumn, RelationVersion
from sluice.tables.column_matching import Matched


def build_schema(
    relation: RelationVersion,
    facts: TableFacts | None,
    previous: TableSchema | None,
    version: int,
    *,
    matched: Matched | None = None,
    begins: bool = False,
) -> TableSchema:
    """The schema of a relation version, before column rules. `facts` is None when the table is gone from the catalog,
    `previous` when this is its first schema. With it the table `begins` a generation, or goes on.

    `matched` are its columns; None when it is `relation_of` the same facts, whose columns have their
    names, or when nothing is known of them.
    """
    named = {column.name: column.attnum for column in facts.columns} if facts else {}
    before = {column.name: column.attnum for column in previous.sent} if previous and not facts else {}
    attnums = (
        matched.attnums
        if matched is not None
        else tuple(named.get(column.name, before.get(column.name, 0)) for column in relation.columns)
    )
    now = {column.attnum: column for column in facts.columns} if facts else {}
    known = {column.attnum: column for column in previous.sent} if previous else {}
    passing = matched.passing if matched is not None else frozenset()
    flagged = {attnum for column, attnum in zip(relation.columns, attnums, strict=True) if column.identity}
    keys = flagged if relation.replica_identity != "f" else _key_of_whole_rows(attnums, facts, previous, begins=begins)
    columns = tuple(
        _column(column, attnum, now.get(attnum), known.get(attnum), key=attnum in keys, transient=attnum in passing)
        for column, attnum in zip(relation.columns, attnums, strict=True)
    )
    return TableSchema(
        table_id=previous.table_id if previous else str(relation.oid),
        version=version,
        schema_name=relation.schema,
        table_name=relation.name,
        replica_identity=relation.replica_identity,
        columns=columns,
        attributes=_attributes(attnums, facts, previous, matched),
    )


def _attributes(
    attnums: tuple[int, ...], facts: TableFacts | None, previous: TableSchema | None, matched: Matched | None
) -> int:
    """Up to which attnum it is known whether the column existed. A catalog that may be ahead of the
    stream does not say so.
    """
    if matched is None and facts is not None:
        return facts.attributes
    return max([*attnums, previous.attributes if previous else 0])


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
        RelationColumn(column.name, column.type_oid, column.typmod, column.identity) for column in schema.sent
    )
    return RelationVersion(
        int(schema.table_id), schema.schema_name, schema.table_name, schema.replica_identity, columns
    )


def _column(
    column: RelationColumn,
    attnum: int,
    now: ColumnFacts | None,
    before: ColumnSchema | None,
    *,
    key: bool,
    transient: bool,
) -> ColumnSchema:
    sent = ColumnSchema(
        name=column.name,
        attnum=attnum,
        type_oid=column.type_oid,
        typmod=column.typmod,
        type_name=f"type {column.type_oid}",
        lake=lake_type(column.type_oid, column.typmod),
        identity=column.identity,
        key=key,
        binary_form=binary_form(column.type_oid, column.typmod, is_enum=False),
        transient=transient or (before is not None and before.transient),
        ignored=before is not None and before.ignored,
    )
    if before is not None and before.missing is not None:
        sent = replace(sent, missing=_still_missing(before, sent))
    if now is not None and (now.type_oid, now.typmod) == (column.type_oid, column.typmod):
        return replace(
            sent,
            type_name=now.type_name,
            lake=lake_type(now.base_type_oid, now.base_typmod),
            # A rewrite of the table forgets it, and every row has the value then.
            missing=now.missing if before is None else sent.missing,
            binary_form=binary_form(now.base_type_oid, now.base_typmod, is_enum=now.is_enum),
        )
    if before is not None and (before.type_oid, before.typmod) == (column.type_oid, column.typmod):
        return replace(
            sent,
            type_name=before.type_name,
            lake=before.lake,
            binary_form=before.binary_form,
        )
    return sent


def _still_missing(before: ColumnSchema, sent: ColumnSchema) -> str | None:
    """The text of the value that older rows have, in the type that the column has now."""
    text = before.missing
    return text_after(Retyped(sent, before), text) if text is not None and widens(before, sent) else text


def _key_of_whole_rows(
    attnums: tuple[int, ...], facts: TableFacts | None, previous: TableSchema | None, *, begins: bool
) -> set[int]:
    """The key of a table whose old rows are sent whole, which the wire does not say. Of any other it does:
    those columns of the old row, which the server keeps unique and not null as long as it sends them.

    The catalog's primary key is that of today and not that of the rows. So it is taken where a
    generation begins, and otherwise where it is the key that the table had; else the rows have no key,
    and are identified by all of their values. One that went on without a key stays without it.
    """
    before = {column.attnum for column in previous.key_columns} if previous else set()
    if facts is None:
        return before if before <= set(attnums) else set()
    primary = {column.attnum for column in facts.columns if column.in_primary_key}
    primary = primary if primary <= set(attnums) else set()
    if previous is None or begins or primary == before:
        return primary
    # A key that the catalog no longer has was lost somewhere between rows that say nothing of it.
    return primary if before and previous.replica_identity == "f" else set()


def same_shape(schema: TableSchema, relation: RelationVersion) -> bool:
    """Whether rows of `relation` are rows of `schema`, as far as the wire can tell. The name is no
    part of it.
    """
    ours = relation_sent_as(schema)
    return (ours.replica_identity, ours.columns) == (relation.replica_identity, relation.columns)


def same_columns(schema: TableSchema, facts: TableFacts) -> bool:
    """Whether `schema` is the shape of the table that `facts` describe: two columns of one name differ by their
    attnum.
    """
    attnums = [column.attnum for column in facts.sent_columns]
    return same_shape(schema, relation_of(facts)) and [column.attnum for column in schema.sent] == attnums


def has_shape(facts: TableFacts, schema: TableSchema) -> bool:
    """Whether rows that are read under `facts` are rows of `schema`. What else the catalog has of the table, such
    as the name of a type or a column that came and went, begins no version, and would make a difference for ever.
    """
    now = build_schema(relation_of(facts), facts, schema, schema.version)
    keys = {column.attnum for column in now.key_columns}
    return same_columns(schema, facts) and keys == {column.attnum for column in schema.key_columns}
