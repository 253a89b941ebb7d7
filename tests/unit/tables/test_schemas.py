"""Schemas from the wire and the catalog."""

from dataclasses import replace

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import TableSchema
from sluice.protocol.messages import RelationColumn, RelationVersion
from sluice.tables.schemas import build_schema, relation_of
from tests.support.source_facts import BODY, ID, column, table


def schema(facts: TableFacts) -> TableSchema:
    return build_schema(relation_of(facts), facts, None, 1)


BEFORE = table(ID, BODY)


def keys(facts: TableFacts) -> list[str]:
    return [key.name for key in schema(facts).key_columns]


def test_the_key_is_the_primary_key_unless_deletes_send_an_identity_index() -> None:
    code = column("code", 3, in_identity=True)
    assert keys(BEFORE) == ["id"]
    assert keys(table(replace(ID, in_identity=False), BODY, code, replica_identity="i")) == ["code"]
    assert keys(table(ID, replace(BODY, in_identity=True), replica_identity="f")) == ["id"]


def test_a_table_with_no_key_has_none_although_full_flags_every_column() -> None:
    bare = replace(ID, in_primary_key=False)
    assert keys(table(replace(bare, in_identity=True), replace(BODY, in_identity=True), replica_identity="f")) == []
    assert keys(table(replace(bare, in_identity=False), BODY, replica_identity="n")) == []


def test_old_rows_that_are_not_sent_have_no_key_although_the_catalog_has_one() -> None:
    assert keys(table(replace(ID, in_identity=False), BODY, replica_identity="n")) == []
    assert keys(table(replace(ID, in_identity=False), BODY, replica_identity="d")) == []


def test_whole_old_rows_get_a_key_that_the_table_did_not_have_with_a_generation_only() -> None:
    whole = table(ID, replace(BODY, in_identity=True), replica_identity="f")
    bare = schema(table(replace(ID, in_primary_key=False, in_identity=False), BODY))
    full = replace(bare, replica_identity="f")

    def key(previous: TableSchema, facts: TableFacts = whole, *, begins: bool = False) -> list[str]:
        return [one.name for one in build_schema(relation_of(facts), facts, previous, 2, begins=begins).key_columns]

    assert [key(bare), key(full), key(schema(BEFORE))] == [[], [], ["id"]]
    assert [key(bare, begins=True), key(full, begins=True)] == [["id"], ["id"]]
    gone = table(replace(ID, in_primary_key=False), replace(BODY, in_identity=True), replica_identity="f")
    assert key(schema(BEFORE), gone) == []


def test_a_primary_key_that_is_not_wholly_published_is_no_key() -> None:
    facts = table(ID, BODY, replica_identity="f", published_columns=("body",))
    assert keys(facts) == []


def test_a_domain_is_typed_by_its_base_type_which_only_the_catalog_knows() -> None:
    price = column("price", 2, type_oid=20000, base_type_oid=1700, base_typmod=655366, type_name="price")
    facts = table(ID, price)
    assert schema(facts).columns[1].lake.sql == "decimal(10,2)"
    later = build_schema(relation_of(facts), None, schema(facts), 2)
    assert later.columns == schema(facts).columns


def test_a_column_that_neither_the_catalog_nor_the_past_knows_has_no_attnum() -> None:
    columns = (RelationColumn("id", 23, -1, identity=True), RelationColumn("gone", 25, -1, identity=False))
    relation = RelationVersion(16400, "public", "t", "d", columns)
    built = build_schema(relation, BEFORE, None, 1)
    assert [found.attnum for found in built.columns] == [1, 0]
