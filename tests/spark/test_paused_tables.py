"""A pause, through the whole applier: nothing is committed while it lasts, everything when it has ended."""

from dataclasses import replace

from sluice.contract.entries import Table
from sluice.contract.table_state import State
from tests.spark import lake
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA

OTHER = replace(SCHEMA, table_id="16386", table_name="others")


def test_a_paused_table_gets_no_commit_and_equals_the_source_after_it_is_resumed(pipeline: Pipeline) -> None:
    """Restarted with each `apply`; the other table goes on, and every boundary names the paused one."""

    def pause(*, paused: bool) -> None:
        pipeline.manifest.append(Table(SCHEMA.table_id, "public", "items", State.LIVE, 1, paused=paused))

    pipeline.begin(SCHEMA, {"id": 1}, {"id": 2})
    pipeline.begin(OTHER, {"id": 1})
    pipeline.apply()
    before = lake.version(pipeline.path())
    pause(paused=True)
    for number in range(3, 6):
        pipeline.manifest.entry([([Change("i", {"id": number})], schema) for schema in (SCHEMA, OTHER)])
        tables = pipeline.apply().tables
        assert (tables[SCHEMA.table_id].state, tables[OTHER.table_id].state) == ("paused", "live")
    assert lake.version(pipeline.path()) == before
    assert sorted(row["id"] for row in pipeline.rows("others")) == [1, 3, 4, 5]  # type: ignore[type-var]
    assert pipeline.complete().left_out == {"public.items": "paused"}
    pause(paused=False)
    pipeline.manifest.transaction([Change("d", old={"id": 1})], SCHEMA)
    assert pipeline.apply().tables[SCHEMA.table_id].state == "live"
    assert sorted(row["id"] for row in pipeline.rows()) == [2, 3, 4, 5]  # type: ignore[type-var]
    assert pipeline.complete().left_out == {}
