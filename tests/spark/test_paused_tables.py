"""A pause, through the whole applier: nothing is committed while it lasts, everything when it has ended."""

from dataclasses import replace

from sluice.contract.entries import Table
from sluice.contract.table_state import State
from tests.spark import lake
from tests.spark.changes import INT4, INT8, Change, column, table_schema
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA
from tests.support.pipeline import wait_until

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


def test_what_came_before_a_change_of_the_key_is_applied_after_a_pause_that_began_meanwhile(
    pipeline: Pipeline,
) -> None:
    """The changes wait for their freshness target, so the pause takes back what was taken in already."""
    first = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4))
    second = table_schema(column("id", 1, INT8), column("v", 2, INT4, key=True), version=2)
    other = replace(first, table_id="16386", table_name="others")
    manifest = pipeline.manifest

    def pause(*, paused: bool) -> None:
        manifest.append(Table(first.table_id, "public", "items", State.LIVE, 1, paused=paused))

    pipeline.begin(first, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    pipeline.begin(other)
    pipeline.apply()
    manifest.examined_lsn = manifest.lsn
    with running(pipeline, tables={"public.items": {"freshness": 3600.0}}) as work:
        seq = manifest.transaction([Change("i", {"id": 3, "v": 3})], first)
        wait_until(lambda: pipeline.reported()["16385"].committed_seq >= seq, what="the first one comes at once")
        for number in (4, 6):
            manifest.transaction([Change("i", {"id": number, "v": number})], first)
        manifest.transaction([Change("d", old={"id": 1})], first)
        manifest.append(Table("16385", "public", "items", State.LIVE, 1, lsn=manifest.lsn + 5, schema=second))
        seq = manifest.entry([([Change("i", {"id": 5, "v": 5})], second), ([Change("i", {"id": 1, "v": 1})], other)])
        wait_until(lambda: pipeline.reported()["16386"].committed_seq >= seq, what="the other table is there")
        pause(paused=True)
        # Nothing is committed meanwhile: a report comes for the pause alone.
        wait_until(lambda: pipeline.reported()["16385"].state == "paused", what="the table is paused", timeout=40)
        pause(paused=False)
        wait_until(lambda: pipeline.reported()["16385"].committed_seq >= seq, what="the table goes on")
    assert (work.ended, pipeline.reported()["16385"].state) == ([], "live")
    assert sorted(row["id"] for row in pipeline.rows()) == [2, 3, 4, 5, 6]  # type: ignore[type-var]
