"""What the contract says of the columns that lake tables add is what the kinds of the applier add."""

import pytest

from sluice.contract.lake_kinds import KINDS
from sluice.contract.lake_targets import LakeTarget
from sluice_spark.kinds.registry import registered
from tests.spark.changes import INT8, TEXT, column, table_schema

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("day", 2, 1082), column("v", 3, TEXT))


@pytest.mark.parametrize("target", [*(LakeTarget(name) for name in KINDS), LakeTarget(deletes="soft")])
@pytest.mark.parametrize("metadata", [True, False])
def test_what_is_said_of_added_columns_is_what_lake_tables_have(target: LakeTarget, metadata: bool) -> None:
    kind = registered(target.kind).configured(target).of(SCHEMA)
    assert sorted(kind.metadata(SCHEMA, wanted=metadata)) == sorted(target.added_columns(metadata=metadata))
