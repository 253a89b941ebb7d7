"""What `on_widen: follow` takes for a cast although it was something else."""

from pathlib import Path
from typing import Any

from sluice.tables.policies import Policies, TablePolicy
from tests.support.catalog_stories import set_up, verdicts
from tests.support.ingesting import IngestPipeline

FOLLOW: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(on_widen="follow"))}


def test_a_key_that_was_dropped_and_added_again_is_a_doubt_although_its_column_got_wider(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    set_up(
        pipeline,
        (
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "CREATE PUBLICATION {p} FOR TABLE t",
        ),
    )
    pipeline.run(**FOLLOW)
    set_up(
        pipeline,
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "INSERT INTO t VALUES (1, 'second')",
            "DELETE FROM t WHERE v = 'a'",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "ALTER TABLE t REPLICA IDENTITY DEFAULT",
            "ALTER TABLE t ALTER id TYPE bigint",
        ),
    )
    pipeline.run(**FOLLOW)
    pipeline.run(**FOLLOW)
    assert [(one.state, one.differences) for one in verdicts(pipeline, tmp_path)] == [("live", ())]


def test_a_rewrite_that_a_wider_type_does_not_need_is_a_doubt(pipeline: IngestPipeline, tmp_path: Path) -> None:
    """PostgreSQL casts varchar to text without writing the table anew: something else was done."""
    set_up(
        pipeline,
        (
            "CREATE TABLE t (id int PRIMARY KEY, v varchar(10))",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "CREATE PUBLICATION {p} FOR TABLE t",
        ),
    )
    pipeline.run(**FOLLOW)
    set_up(pipeline, ("ALTER TABLE t ALTER v TYPE text USING v || '!'", "INSERT INTO t VALUES (3, 'c')"))
    for _ in range(2):
        pipeline.run(**FOLLOW)
    assert [(one.state, one.differences) for one in verdicts(pipeline, tmp_path)] == [("live", ())]
    assert pipeline.table("public.t").resyncs.counts == {"rewrite": 1}
