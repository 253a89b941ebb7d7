"""Which properties, clusterings and partitions a configuration may ask for, and which it is refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.contract.lake_layout import LakeLayout, refused_column, refused_property
from sluice.settings.tables import TableSettings


@pytest.mark.parametrize("name", ["delta.enableRowTracking", "delta.targetFileSize", "team", "comment"])
def test_properties_that_others_go_by_may_be_set(name: str) -> None:
    assert not refused_property(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("delta.enableRowTraking", "did you mean delta.enableRowTracking?"),
        ("delta.columnMapping.mode", "can be set here"),
        ("delta.setTransactionRetentionDuration", "can be set here"),
        ("delta.checkpointInterval", "can be set here"),
        ("Delta.enableRowTracking", "can be set here"),
        ("parquet.enable.dictionary", "belongs to Sluice"),
        ("owner", "reserved by Spark"),
    ],
)
def test_properties_by_which_tables_are_read_and_committed_are_refused_by_name(name: str, said: str) -> None:
    assert said in refused_property(name)
    with pytest.raises(ValidationError, match=name):
        TableSettings.model_validate({"properties": {name: "1"}})


@pytest.mark.parametrize("kind", ["string", "double", "decimal(10,2)", "timestamp", "binary", "array<int>"])
def test_columns_whose_values_partitions_cannot_spell_are_refused(kind: str) -> None:
    assert kind in refused_column("a", {"a": kind}, partitions=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cluster_by": ["a", "b", "c", "d", "e"]}, "at most 4"),
        ({"cluster_by": ["a", "a"]}, "named twice"),
        ({"cluster_by": ["a"], "partition_by": ["b"]}, "not both"),
    ],
)
def test_layouts_that_no_table_can_have_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TableSettings.model_validate(given)


def test_a_target_has_the_layout_of_its_table_except_for_what_it_says_itself() -> None:
    table = TableSettings.model_validate(
        {
            "properties": {"delta.enableRowTracking": True, "delta.targetFileSize": 7},
            "cluster_by": ["a"],
            "targets": [
                {"kind": "mirror"},
                {"kind": "mirror", "name": "b", "partition_by": ["day"], "properties": {"delta.targetFileSize": "8"}},
                {"kind": "mirror", "name": "c", "cluster_by": []},
            ],
        }
    )
    assert table.targets is not None
    plain, other, none = (one.target(table).layout for one in table.targets)
    assert plain == LakeLayout((("delta.enableRowTracking", "true"), ("delta.targetFileSize", "7")), ("a",))
    assert (dict(other.properties)["delta.targetFileSize"], other.cluster_by, other.partition_by) == ("8", (), ("day",))
    assert none.cluster_by == ()
