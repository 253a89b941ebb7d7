"""A pause, through the whole applier: nothing is committed while it lasts, everything when it has ended."""

from dataclasses import replace

from sluice.contract.entries import Table
from sluice.contract.table_state import State
from tests.spark.changes import INT4, INT8, Change, column, table_schema
from tests.spark.conftest import Pipeline, running
from tests.spark.model import ID, SCHEMA, named
from tests.support.extent import slow

OTHER = named("others")


def pause(pipeline: Pipeline, *, paused: bool = True) -> None:
    pipeline.manifest.append(Table(ID, "public", "items", State.LIVE, 1, paused=paused))


def test_a_paused_table_gets_no_commit_and_equals_the_source_after_it_is_resumed(pipeline: Pipeline) -> None:
    """Restarted with each `apply`; the other table goes on, and every boundary names the paused one."""
    pipeline.begin(OTHER, {"id": 1})
    pipeline.begin(SCHEMA, {"id": 1}, {"id": 2})
    pipeline.apply()
    before = pipeline.version()
    pause(pipeline)
    for number in range(3, 6):
        pipeline.manifest.entry([([Change("i", {"id": number})], schema) for schema in (SCHEMA, OTHER)])
        tables = pipeline.apply().tables
        assert (tables[ID].state, tables[OTHER.table_id].state) == ("paused", "live")
    assert pipeline.version() == before
    assert pipeline.keys("others") == [1, 3, 4, 5]
    assert pipeline.complete().left_out == {"public.items": "paused"}
    pause(pipeline, paused=False)
    pipeline.change(Change("d", old={"id": 1}))
    pipeline.applied()
    assert pipeline.keys() == [2, 3, 4, 5]
    assert pipeline.complete().left_out == {}


@slow
def test_what_came_before_a_change_of_the_key_is_applied_after_a_pause_that_began_meanwhile(
    pipeline: Pipeline,
) -> None:
    """The changes wait for their freshness target, so the pause takes back what was taken in already."""
    first = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4))
    second = table_schema(column("id", 1, INT8), column("v", 2, INT4, key=True), version=2)
    other = replace(first, table_id="16386", table_name="others")
    manifest = pipeline.manifest
    pipeline.begin(other)
    pipeline.begin(first, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    pipeline.apply()
    manifest.examined_lsn = manifest.lsn
    with running(pipeline, tables={"public.items": {"freshness": 3600.0}}) as work:
        seq = pipeline.change(Change("i", {"id": 3, "v": 3}))
        work.says(lambda table: table.committed_seq >= seq, "the first one comes at once")
        for number in (4, 6):
            pipeline.change(Change("i", {"id": number, "v": number}))
        pipeline.change(Change("d", old={"id": 1}))
        manifest.append(Table(ID, "public", "items", State.LIVE, 1, lsn=manifest.lsn + 5, schema=second))
        seq = manifest.entry([([Change("i", {"id": 5, "v": 5})], second), ([Change("i", {"id": 1, "v": 1})], other)])
        work.says(lambda table: table.committed_seq >= seq, "the other table is there", table_id="16386")
        pause(pipeline)
        # Nothing is committed meanwhile: a report comes for the pause alone.
        work.says(lambda table: table.state == "paused", "the table is paused")
        pause(pipeline, paused=False)
        work.says(lambda table: table.committed_seq >= seq, "the table goes on")
    assert pipeline.reported()[ID].state == "live"
    assert pipeline.keys() == [2, 3, 4, 5, 6]
