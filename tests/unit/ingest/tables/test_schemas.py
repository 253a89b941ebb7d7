"""Schemas from the wire and the catalog, and what each change of shape means for the lake table."""

from dataclasses import replace

import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.evolution import diff_schema
from sluice.contract.schema import TableSchema
from sluice.ingest.tables.schemas import build_schema, relation_of
from sluice.protocol.messages import RelationColumn, RelationVersion
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
    relation = RelationVersion(
        16400,
        "public",
        "t",
        "d",
        (RelationColumn("id", 23, -1, identity=True), RelationColumn("gone", 25, -1, identity=False)),
    )
    built = build_schema(relation, BEFORE, None, 1)
    assert [found.attnum for found in built.columns] == [1, 0]


def test_the_same_name_with_another_type_is_not_the_same_column() -> None:
    relation = RelationVersion(
        16400,
        "public",
        "t",
        "d",
        (RelationColumn("id", 23, -1, identity=True), RelationColumn("body", 1043, 24, identity=False)),
    )
    assert build_schema(relation, BEFORE, schema(BEFORE), 2).columns[1].attnum == 0


def test_nothing_changed_is_the_same() -> None:
    assert diff_schema(schema(BEFORE), schema(BEFORE), facts=BEFORE, old_relfilenode=16400).kind == "same"


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (table(ID), "body was dropped"),
        (table(ID, replace(BODY, name="text")), "renamed to text"),
        (
            table(
                ID,
                replace(
                    BODY,
                    type_oid=1043,
                    base_type_oid=1043,
                    typmod=24,
                    base_typmod=24,
                    type_name="character varying(20)",
                ),
            ),
            "changed its type",
        ),
        (table(ID, replace(BODY, attnum=3)), "dropped and added again"),
        (
            table(
                replace(ID, in_primary_key=False, in_identity=False),
                replace(BODY, in_primary_key=True, in_identity=True),
            ),
            "key changed",
        ),
        (table(ID, BODY, name="u"), "renamed from public.t to public.u"),
        (table(ID, BODY, column("added", 3, has_default=True), relfilenode=16999), "rewritten when column added"),
        (table(ID, BODY, column("added", 3), relfilenode=16999), "rewritten when column added"),
        (
            table(ID, BODY, column("added", 3, has_default=True), relkind="p", relfilenode=5),
            "rewritten when column added",
        ),
    ],
)
def test_what_the_lake_table_cannot_follow_is_refused_with_its_reason(after: TableFacts, reason: str) -> None:
    diff = diff_schema(schema(BEFORE), schema(after), facts=after, old_relfilenode=16400)
    assert diff.kind == "unsupported"
    assert reason in diff.reason


def test_an_added_column_is_followed_with_the_value_that_older_rows_have() -> None:
    after = table(ID, BODY, column("added", 3, has_default=True, missing="x"))
    diff = diff_schema(schema(BEFORE), schema(after), facts=after, old_relfilenode=16400)
    assert diff.kind == "added_columns"
    assert [(one.name, one.missing) for one in schema(after).columns if one.name == "added"] == [("added", "x")]
    plain = table(ID, BODY, column("added", 3))
    assert diff_schema(schema(BEFORE), schema(plain), facts=plain, old_relfilenode=16400).kind == "added_columns"


def test_a_column_that_was_there_before_it_was_published_is_not_an_added_one() -> None:
    hidden = table(ID, column("secret", 2), column("body", 3), published_columns=("id", "body"), has_column_list=True)
    shown = replace(hidden, published_columns=("id", "secret", "body"))
    diff = diff_schema(schema(hidden), schema(shown), facts=shown, old_relfilenode=16400)
    assert diff.kind == "unsupported"
    assert "secret" in diff.reason


def test_an_added_column_that_the_catalog_no_longer_knows_is_not_guessed_at() -> None:
    after = table(ID, BODY, column("added", 3))
    assert diff_schema(schema(BEFORE), schema(after), facts=None, old_relfilenode=16400).kind == "unsupported"
    assert diff_schema(schema(BEFORE), schema(after), facts=BEFORE, old_relfilenode=16400).kind == "unsupported"


def test_another_identity_with_the_same_key_changes_old_rows_only() -> None:
    after = table(ID, replace(BODY, in_identity=True), replica_identity="f")
    assert diff_schema(schema(BEFORE), schema(after), facts=after, old_relfilenode=16400).kind == "identity"
