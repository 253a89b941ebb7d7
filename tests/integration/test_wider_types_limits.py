"""A limit of `on_widen: follow`, as docs/guarantees.md names it: of two rewrites of a column between two looks
at the catalog nobody sees the first one. A comparison finds what it did to values.
"""

from pathlib import Path
from typing import Any

import pytest

from sluice.tables.policies import Policies, TablePolicy
from tests.support.catalog_stories import set_up, verdicts
from tests.support.ingesting import IngestPipeline

FOLLOW: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(on_widen="follow"))}
STORIES = {
    "numeric": ("numeric(10,2)", "1.25", ("TYPE numeric(10,1)", "TYPE numeric(12,3)")),
    "date": ("date", "2020-01-01", ("TYPE timestamp", "TYPE date", "TYPE timestamp")),
    "int": ("int", "70000", ("TYPE smallint USING (x % 7)", "TYPE bigint")),
}


@pytest.mark.parametrize("name", STORIES)
def test_two_rewrites_of_a_column_between_two_looks_are_the_limit_that_is_named(
    pipeline: IngestPipeline, tmp_path: Path, name: str
) -> None:
    kind, value, changes = STORIES[name]
    set_up(
        pipeline,
        (
            f"CREATE TABLE t (id int PRIMARY KEY, x {kind})",
            f"INSERT INTO t VALUES (1, '{value}')",
            "CREATE PUBLICATION {p} FOR TABLE t",
        ),
    )
    pipeline.run(**FOLLOW)
    set_up(pipeline, tuple(f"ALTER TABLE t ALTER x {change}" for change in changes[:1]))
    if name == "date":
        set_up(pipeline, ("UPDATE t SET x = '2020-01-01 12:00'",))
    set_up(pipeline, tuple(f"ALTER TABLE t ALTER x {change}" for change in changes[1:]))
    pipeline.run(**FOLLOW)
    pipeline.run(**FOLLOW)
    (found,) = verdicts(pipeline, tmp_path)
    assert (found.state, bool(found.differences)) == ("live", True)
