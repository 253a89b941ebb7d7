"""What `check` calls critical for a table keeps it from being carried, unless it harms the source alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.catalog_facts import ChildFacts, TableFacts
from sluice.contract.conditions import conditions, refused
from sluice.contract.lake_names import LakeNames
from sluice.contract.lake_targets import LakeTarget
from sluice.findings import Finding
from sluice.manifest.targets import Layout
from sluice.operate.check.tables import collisions, examine_tables
from sluice.tables.policies import Policies, TablePolicy
from tests.support.source_facts import BODY, ID, column, table

LEAF: dict[str, Any] = {"oid": 2, "schema": "public", "name": "leaf", "relkind": "r", "relpersistence": "p"}
PLACE: dict[str, Any] = {"relfilenode": 2, "levels": ("2:1",), "attached": (), "missing": (), "version": "7"}
LOGGED = ChildFacts(**LEAF, **PLACE, replica_identity="d", identity_columns=("id",), settings="")
OTHER, UNLOGGED = replace(LOGGED, identity_columns=()), replace(LOGGED, relpersistence="u")

CARRIED = {
    "a plain table": table(ID, BODY),
    "a partitioned one": table(ID, BODY, relkind="p", children=(LOGGED,)),
    "one with a filter and large values": table(ID, BODY, row_filter="(id > 1)"),
    "one with a filter and its whole old rows": table(ID, BODY, row_filter="(id > 1)", replica_identity="f"),
    "one with a list that has the key": table(ID, BODY, published_columns=("id",), has_column_list=True),
}
STOPPED = {
    "schema.reserved": table(ID, schema="_sluice_own"),
    "table.long_name": table(ID, name="\u00fc" * 63),
    "column.reserved": table(ID, column("_sluice_op", 2)),
    "column.case": table(ID, column("a", 2), column("A", 3)),
    "publication.operations": table(ID, publishes="iud"),
    "table.identity_not_published": table(ID, BODY, published_columns=("body",), has_column_list=True),
    "partition.not_logged": table(ID, relkind="p", children=(UNLOGGED,)),
    "partition.identity": table(ID, relkind="p", children=(OTHER,)),
    "table.not_readable": table(ID, column("hidden", 2, selectable=False)),
    "table.row_security": table(ID, policies_apply=True),
}
HARMS_THE_SOURCE = {"table.no_identity", "column.generated_in_identity"}
"""The source refuses UPDATE and DELETE by itself: nothing is lost."""
KNOWN_TO_THE_STORE = {"table.path"}
"""Whether paths that differ by case are one."""


def codes(findings: Any) -> set[str]:
    return {finding.code for finding in findings}


def test_a_generated_column_of_the_key_that_is_not_sent_keeps_its_table_out() -> None:
    """PostgreSQL 14 has no list of the columns that a publication sends."""
    made = column("made", 2, in_identity=True, generated="s")
    assert codes(conditions(table(ID, made))) == {"table.identity_not_published"}
    assert codes(conditions(table(ID, made, published_columns=("id",)))) == {"table.identity_not_published"}
    assert codes(conditions(table(ID, made, published_columns=("id", "made")))) == set()
    assert codes(conditions(table(ID, made, replica_identity="f"))) == set()


@pytest.mark.parametrize("what", CARRIED)
def test_a_table_that_can_be_carried_is_refused_for_nothing(what: str) -> None:
    assert list(conditions(CARRIED[what])) == []
    assert refused(conditions(CARRIED[what])) is None


@pytest.mark.parametrize("code", STOPPED)
def test_what_keeps_a_table_from_being_carried_is_critical_and_says_what_to_do(code: str) -> None:
    found = list(conditions(STOPPED[code]))
    assert codes(found) == {code}
    assert all(
        isinstance(one, Finding) and one.severity == "critical" and (one.fix_sql or one.fix_setting) for one in found
    )
    why = refused(conditions(STOPPED[code]))
    assert why is not None
    assert (why.code, why.parameters["finding"]) == ("condition", found[0].code)
    assert found[0].seen in why.what
    assert (found[0].fix_sql or found[0].fix_setting) in why.what


def _examined(facts: TableFacts, *, accept_missing: str = "") -> Iterator[Finding]:
    policies = Policies(TablePolicy(accept_missing=accept_missing))
    return examine_tables([facts], publication="p", server_version=180000, policies=policies, known={})


@pytest.mark.parametrize(
    ("publishes", "accepted", "refused"),
    [("iud", "t", ""), ("iu", "dt", ""), ("iu", "t", "delete"), ("id", "dt", "update")],
)
def test_a_kind_of_change_that_is_left_out_on_purpose_keeps_no_table_from_being_carried(
    publishes: str, accepted: str, refused: str
) -> None:
    facts = table(ID, BODY, publishes=publishes)
    findings = list(conditions(facts, accept_missing=accepted))
    assert [one.seen.partition("(")[2].partition(" left out")[0] for one in findings] == [refused] * bool(refused)
    examined = _examined(facts, accept_missing=accepted)
    severities = {one.severity for one in examined if one.code == "publication.operations"}
    assert severities == ({"critical"} if refused else {"info"})


@pytest.mark.parametrize("code", [*STOPPED, "two at once"])
def test_check_finds_nothing_critical_in_a_table_that_run_would_carry(code: str) -> None:
    facts: TableFacts = STOPPED.get(code) or table(column("_sluice_op", 1), publishes="i", replica_identity="n")
    critical = {one.code for one in _examined(facts) if one.severity == "critical"}
    assert critical - HARMS_THE_SOURCE - KNOWN_TO_THE_STORE == codes(conditions(facts))


@pytest.mark.parametrize(
    ("template", "targets", "found"),
    [
        ("{schema}/{target}", {}, {}),
        ("{schema}/{target}", {"public.a": ("b",)}, {"public.b": "public.a/b"}),
        ("{schema}/{target}", {"public.a": ("h",), "public.b": ("H",)}, {"public.b/H": "public.a/h"}),
        ("{schema}/{table}/{target}", {"public.a": ("h",), "public.b": ("h",)}, {}),
        ("{target}", {}, {"sales.a": "public.a"}),
        ("{schema}_{target}", {}, {"public.b_c": "public_b.c"}),
    ],
)
def test_two_lake_tables_at_one_path_are_found_before_anything_is_written(
    template: str, targets: dict[str, tuple[str, ...]], found: dict[str, str]
) -> None:
    named = {name: (LakeTarget(), *(LakeTarget(name=one) for one in names)) for name, names in targets.items()}
    layout = Layout(LakeNames(template), lambda name: named.get(name, (LakeTarget(),)))
    names = [("public", "a"), ("public", "b"), ("sales", "a"), ("public_b", "c"), ("public", "b_c")]
    if template != "{schema}_{target}":
        names = names[:3]
    tables = [table(ID, oid=number, schema=schema, name=name) for number, (schema, name) in enumerate(names)]
    findings = list(collisions(tables, layout))
    assert {(one.code, one.severity) for one in findings} <= {("table.path", "critical")}
    assert {one.object: one.seen for one in findings}.keys() == found.keys()
    assert all(f"that of {found[one.object]} " in one.seen for one in findings)
