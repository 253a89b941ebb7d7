"""Tables that an operator paused: everything of them is received and kept, at any cost but WAL."""

from sluice import lsn
from sluice.contract.control import PAUSE, REMOVE, RESUME, RESYNC, Refusal
from sluice.contract.keys import REFUSED
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline


def refusals(pipeline: IngestPipeline) -> list[Refusal]:
    return [Refusal.decode(pipeline.store.get(key)) for key in pipeline.store.list(REFUSED)]


def test_a_paused_table_is_spooled_and_acknowledged_through_changes_of_shape_and_restarts(
    pipeline: IngestPipeline,
) -> None:
    pipeline.run(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)"
    )
    pipeline.request(PAUSE, table="a")
    pipeline.run()
    paused = pipeline.table("public.a")
    assert (paused.state, paused.is_applied) == ("live", False)
    assert pipeline.table("public.b").is_applied
    for number in (2, 3):
        pipeline.execute(
            f"INSERT INTO a VALUES ({number})",
            f"ALTER TABLE a ADD COLUMN c{number} int",
            f"INSERT INTO a VALUES ({number * 10}, 1)",
        )
        target = lsn.parse(pipeline.wal_end())
        pipeline.run_until(target)
        assert pipeline.confirmed() >= target, "the source keeps no WAL for it"
    now = pipeline.table("public.a")
    assert now.paused is not None
    assert paused.paused is not None
    assert (now.state, now.paused.since, now.paused.rows) == ("live", paused.paused.since, 4)
    assert sorted(row["id"] for row in pipeline.rows("public.a")) == [2, 3, 20, 30]
    pipeline.request(RESUME, table="a")
    pipeline.run()
    assert pipeline.table("public.a").is_applied
    assert list(pipeline.store.list("control/")) == []


def test_requests_are_carried_out_in_the_order_of_their_keys_and_twice_is_once(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.request(PAUSE, PAUSE, RESUME, RESUME, PAUSE, table="a")
    pipeline.run()
    assert not pipeline.table("public.a").is_applied
    steps = [table.paused for entry in pipeline.entries() for table in entry.tables]
    assert [step for step in steps if step is not None] == [True, False, True]


def test_a_resync_of_a_paused_table_is_read_and_waits_with_it(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    pipeline.request(PAUSE, RESYNC, table="a")
    pipeline.run()
    table = pipeline.table("public.a")
    assert (table.generation, table.state, table.is_applied) == (2, "live", False)
    assert table.paused is not None
    assert table.paused.rows == 2


@slow
def test_a_request_that_cannot_be_carried_out_is_refused_by_name(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.request(PAUSE, table="gone")
    pipeline.run()
    assert [(one.table, one.reason) for one in refusals(pipeline)] == [
        ("public.gone", "no table public.gone is followed")
    ]
    pipeline.request(REMOVE, table="a")
    pipeline.run()
    assert any("still published and selected" in one.reason for one in refusals(pipeline))
    assert pipeline.table("public.a").state == "live"
