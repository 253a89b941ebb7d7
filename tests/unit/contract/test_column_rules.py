"""Which rule holds for which column, over renames and edits, and that no value stays in a schema."""

from dataclasses import replace

import pytest

from sluice.contract.column_rules import EXCLUDED, ColumnRules, applied, changed
from sluice.contract.column_values import HashKeys, key_id, made_of
from sluice.contract.schema import ColumnRule, ColumnSchema, RuleKind, TableSchema
from sluice.contract.types import lake_type

KEY = b"a key of many bytes"
MASK = ColumnRule(RuleKind.MASK, mask="***")
HASH = ColumnRule(RuleKind.HASH, key_id=key_id(KEY))
NAME = "public.t"


def schema(*names: str, since: int = 1) -> TableSchema:
    """Text columns with the numbers from `since` on, of which older rows hold a default."""
    columns = tuple(
        ColumnSchema(name, number, 25, -1, "text", lake_type(25, -1), missing=f"default of {name}")
        for number, name in enumerate(names, since)
    )
    return TableSchema("1", 1, "public", "t", "d", columns)


def under(
    rules: ColumnRules, shape: TableSchema, before: TableSchema | None = None, *, name: str = NAME
) -> TableSchema:
    return applied(shape, rules.in_force(shape.columns, before, name=name), before, rules.keys)


def rules_of(shape: TableSchema) -> dict[str, str]:
    return {column.name: column.rule.text for column in shape.sent if column.rule is not None}


def test_wire_order_is_kept_and_what_is_excluded_says_nothing_of_its_values() -> None:
    ruled = under(ColumnRules({"a": EXCLUDED, "c": EXCLUDED}), schema("a", "b", "c", "d"))
    assert [column.name for column in ruled.columns] == ["b", "d"]
    assert [column.name for column in ruled.sent] == ["a", "b", "c", "d"]
    assert [one.column.missing for one in ruled.excluded] == [None, None]


def test_a_default_that_older_rows_hold_is_ruled_once() -> None:
    rules = ColumnRules({"b": HASH, "c": MASK}, keys=HashKeys([KEY]))
    first = under(rules, schema("a"))
    second = under(rules, schema("a", "b", "c"), first)
    assert [column.missing for column in second.columns] == [
        "default of a",
        made_of(HASH, "default of b", HashKeys([KEY]), where=""),
        "***",
    ]
    again = replace(second, columns=tuple(replace(one, rule=None) for one in second.columns))
    assert under(rules, again, second).columns == second.columns


@pytest.mark.parametrize("rules", [ColumnRules({"a": MASK}), ColumnRules({"a": EXCLUDED}), ColumnRules({"a": None})])
def test_a_default_from_before_another_rule_is_not_kept(rules: ColumnRules) -> None:
    before = under(ColumnRules({"a": replace(MASK, mask="-")}), schema("a"))
    ruled = under(rules, schema("a"), before)
    assert changed(before, ruled)
    assert [column.missing for column in ruled.sent] == [None]


def test_a_name_that_a_column_never_had_is_unknown_and_one_that_it_had_is_not() -> None:
    rules = ColumnRules({"a": MASK, "b": None})
    assert rules.in_force(schema("a").columns, None, name=NAME).unknown == ("b",)
    both = under(rules, schema("a", "b"))
    gone = under(rules, schema("c", since=3), both)
    assert gone.rules_met == ("a", "b")
    assert rules.in_force(schema("d", since=4).columns, gone, name=NAME).unknown == ()


@pytest.mark.parametrize("rules", [ColumnRules({"a": MASK}), ColumnRules(new_columns="exclude")])
def test_rules_are_left_behind_by_a_name_that_has_none(rules: ColumnRules) -> None:
    before = replace(under(rules, schema("a")), table_name="new")
    renamed = ColumnRules().in_force(before.sent, before, name="public.new")
    assert renamed.left_behind == NAME
    assert ColumnRules().in_force(before.sent, before, name=NAME).left_behind == ""
    assert rules.in_force(before.sent, before, name="public.new").left_behind == ""
    ended = under(ColumnRules(), schema("a"), before)
    assert ColumnRules().in_force(ended.sent, ended, name="public.new").left_behind == ""
