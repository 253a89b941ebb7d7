"""Columns that the targets of a table name are found wanting before the applier finds them so, by the nearest name."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.contract import envelope
from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.contract.lake_layout import LakeLayout
from sluice.contract.lake_targets import LakeTarget
from sluice.findings import Finding
from sluice.operate.check.targets import examine_targets, losable
from sluice.tables.policies import TablePolicy
from tests.support.source_facts import ID, column, table

STATUS, CARD = column("status", 2), column("card", 3)
DAY = column("day", 4, type_oid=1082, base_type_oid=1082, type_name="date")
WEIGHT = column("weight", 5, type_oid=701, base_type_oid=701, type_name="double precision")
FACTS = table(ID, STATUS, CARD, DAY, WEIGHT, name="t")
RULES = ColumnRules({"card": EXCLUDED})


def found(target: LakeTarget, **more: Any) -> list[Finding]:
    policy = TablePolicy(targets=(target,), rules=RULES)
    return list(examine_targets(FACTS, policy, None, **{"metadata": True, **more}))


def laid(**layout: Any) -> LakeTarget:
    return LakeTarget(layout=LakeLayout(**layout))


@pytest.mark.parametrize(
    "target",
    [
        LakeTarget("history", "h", track=("status", "day")),
        LakeTarget("history", layout=LakeLayout(cluster_by=("id", envelope.TO_LSN))),
        LakeTarget("history", layout=LakeLayout(partition_by=(envelope.IS_CURRENT,))),
        LakeTarget(deletes="soft", layout=LakeLayout(cluster_by=(envelope.DELETED_AT, envelope.LSN))),
        laid(partition_by=("day",)),
    ],
)
def test_columns_that_a_lake_table_will_have_are_no_finding(target: LakeTarget) -> None:
    assert found(target) == []


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        (LakeTarget("history", track=("stat_us",)), "target.track", "did you mean status?"),
        (LakeTarget("history", track=("card",)), "target.track", "a column rule keeps out of the lake"),
        (laid(cluster_by=("stat_us",)), "target.cluster_by", "did you mean status?"),
        (laid(cluster_by=("card",)), "target.cluster_by", "a column rule keeps out of the lake"),
        (laid(cluster_by=("weight",)), "target.cluster_by", "cannot be clustered"),
        (laid(cluster_by=(envelope.IS_CURRENT,)), "target.cluster_by", "does not have"),
        (laid(partition_by=("dya",)), "target.partition_by", "did you mean day?"),
        (laid(partition_by=("status",)), "target.partition_by", "a column of partitions is one of"),
    ],
)
def test_a_column_that_cannot_be_had_is_named_with_the_nearest(target: LakeTarget, code: str, said: str) -> None:
    (finding,) = found(target)
    assert (finding.code, finding.severity) == (code, "critical")
    assert said in f"{finding.seen}; {finding.fix_setting}"


def test_columns_of_the_order_are_there_with_metadata_columns_alone() -> None:
    target = laid(cluster_by=(envelope.LSN,))
    assert found(target) == []
    assert [one.code for one in found(target, metadata=False)] == ["target.cluster_by"]


def test_a_column_behind_those_with_bounds_is_no_column_to_cluster_by() -> None:
    wide = table(ID, *(column(f"c{number}", number) for number in range(2, 40)))
    policies = [TablePolicy(targets=(laid(cluster_by=(name,)),)) for name in ("c32", "c33")]
    said = [[one.seen for one in examine_targets(wide, policy, None, metadata=True)] for policy in policies]
    assert said[0] == []
    assert "not among the first 32" in said[1][0]


def test_a_name_that_needs_column_mapping_is_found_where_a_target_does_without() -> None:
    facts = table(ID, column("net amount", 2), name="t")
    plain = TablePolicy(targets=(laid(properties=(("delta.columnMapping.mode", "none"),)), LakeTarget(name="mapped")))
    (finding,) = examine_targets(facts, plain, None, metadata=True)
    assert finding.code == "target.properties"
    assert "net amount" in finding.seen


@pytest.mark.parametrize("target", [LakeTarget(deletes="soft"), LakeTarget("history", "h")])
def test_a_target_that_knows_its_rows_by_a_key_is_refused_where_there_is_none(target: LakeTarget) -> None:
    keyless = table(replace(ID, in_primary_key=False, in_identity=False), name="t")
    (finding,) = examine_targets(keyless, TablePolicy(targets=(target,)), None, metadata=True)
    assert (finding.code, finding.severity) == ("target.key", "critical")


def test_a_changelog_that_a_snapshot_may_replace_by_itself_is_said_before() -> None:
    targets = (LakeTarget(), LakeTarget("history", "h"), LakeTarget("changelog", "c"))
    (finding,) = losable(FACTS, TablePolicy(targets=targets))
    assert (finding.severity, finding.code, finding.object) == ("info", "target.changelog", "public.t/c")
    assert "on_change: stop" in finding.fix_setting
    assert list(losable(FACTS, TablePolicy(on_change="stop", targets=targets))) == []
