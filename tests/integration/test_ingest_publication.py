"""A publication that is dropped and created again: the process says so, goes on once the hint is
followed, and no table that lost changes is live.
"""

from typing import Any

import psycopg
import pytest

from sluice.contract.control import RESYNC
from sluice.errors import SourceRefused
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since


def _published(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert pipeline.table("public.t").state == "live"


def _drop_and_write(pipeline: IngestPipeline, number: int) -> None:
    pipeline.execute("DROP PUBLICATION {p}", f"INSERT INTO t VALUES ({number})")


def _create_and_write(pipeline: IngestPipeline, number: int) -> None:
    pipeline.execute("CREATE PUBLICATION {p} FOR TABLE t", f"INSERT INTO t VALUES ({number})")


def _run_until_it_is_dropped(pipeline: IngestPipeline) -> None:
    with pipeline.running(watch_interval_s=600) as running:
        running.wait_until_connected()
        _drop_and_write(pipeline, 2)
        running.thread.join(90)


def _copy_again(pipeline: IngestPipeline, **options: Any) -> None:
    pipeline.request(RESYNC, table="t")
    pipeline.run(**options)


def test_without_its_publication_the_process_ends_by_name(pipeline: IngestPipeline) -> None:
    _published(pipeline)
    with pytest.raises(SourceRefused, match=r"publication .* does not exist any more") as caught:
        _run_until_it_is_dropped(pipeline)
    assert (caught.value.exit_code, "sluice resync" in caught.value.hint) == (5, True)
    assert pipeline.commits() == []


def test_after_it_was_created_again_the_table_is_stale_and_a_snapshot_makes_it_whole(pipeline: IngestPipeline) -> None:
    _published(pipeline)
    _drop_and_write(pipeline, 2)
    _create_and_write(pipeline, 3)
    pipeline.run(watch_interval_s=600)
    table = pipeline.table("public.t")
    assert table.state == "stale"
    assert "publication" in table.reason
    assert "sluice resync" in table.reason
    pipeline.execute("INSERT INTO t VALUES (4)")
    _copy_again(pipeline)
    pipeline.run("INSERT INTO t VALUES (5)")
    assert pipeline.table("public.t").state == "live"
    assert pipeline.ids("public.t") == [1, 2, 3, 4, 5]


@slow
def test_transactions_that_were_open_meanwhile_hold_nothing_up_for_ever(pipeline: IngestPipeline) -> None:
    """Their older rows cannot be decoded whenever they commit."""
    _published(pipeline)
    with psycopg.connect(pipeline.database.dsn) as long:
        long.execute("INSERT INTO t VALUES (2)")
        with pipeline.running(watch_interval_s=600) as running:
            running.wait_until_connected()
            pipeline.execute("CREATE TABLE other (id int)", "DROP TABLE other")
            pipeline.execute("DROP PUBLICATION {p}")
            long.execute("INSERT INTO t VALUES (3)")
            pipeline.execute("CREATE PUBLICATION {p} FOR TABLE t")
            long.execute("INSERT INTO t VALUES (4)")
            long.commit()
            pipeline.execute("INSERT INTO t VALUES (5)")
            running.wait_until(
                lambda: (
                    pipeline.table("public.t").state == "stale" or 5 in [row["id"] for row in pipeline.rows("public.t")]
                )
            )
    if pipeline.table("public.t").state == "stale":
        _copy_again(pipeline)
    pipeline.run()
    assert pipeline.table("public.t").state == "live"
    assert pipeline.ids("public.t") == [1, 2, 3, 4, 5]


@slow
def test_a_second_loss_of_the_publication_is_found_as_the_first_was(pipeline: IngestPipeline) -> None:
    _published(pipeline)
    for number in (2, 4):
        _drop_and_write(pipeline, number)
        _create_and_write(pipeline, number + 1)
        pipeline.run(watch_interval_s=600)
        assert pipeline.table("public.t").state == "stale"
        _copy_again(pipeline)
        assert pipeline.table("public.t").state == "live"
        assert pipeline.ids("public.t") == list(range(1, number + 2))


def _prepare(gid: str, number: int) -> str:
    return f"BEGIN; INSERT INTO t VALUES ({number}); PREPARE TRANSACTION '{gid}'"


@slow
def test_what_was_prepared_around_the_loss_neither_blocks_its_gid_nor_the_stream(pipeline: IngestPipeline) -> None:
    """One ends in between, one outlives it, and one is prepared in between."""
    database = pipeline.database
    two_phase: dict[str, Any] = {"two_phase": True, "watch_interval_s": 600.0}
    since(database, 15, "two_phase")
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", **two_phase)
    pipeline.run(_prepare("ends", 2), _prepare("outlives", 3), **two_phase)
    assert sorted(one.gid for one in pipeline.state().prepared.values()) == ["ends", "outlives"]
    _drop_and_write(pipeline, 4)
    database.execute("COMMIT PREPARED 'ends'", _prepare("between", 5))
    _create_and_write(pipeline, 6)
    with pytest.raises(
        SourceRefused, match=r"1 transaction was prepared while publication .* did not exist.*'between'"
    ):
        pipeline.run(**two_phase)
    pipeline.run("COMMIT PREPARED 'between'", **two_phase)
    assert pipeline.table("public.t").state == "stale"
    assert [one.gid for one in pipeline.state().prepared.values()] == ["outlives"]
    pipeline.run("COMMIT PREPARED 'outlives'", _prepare("ends", 7), "COMMIT PREPARED 'ends'", **two_phase)
    assert pipeline.state().prepared == {}
    _copy_again(pipeline, **two_phase)
    assert pipeline.ids("public.t") == list(range(1, 8))


@slow
def test_messages_go_on_after_the_publication_was_made_again(pipeline: IngestPipeline) -> None:
    _published(pipeline)
    pipeline.run(messages=True)
    _drop_and_write(pipeline, 2)
    _create_and_write(pipeline, 3)
    pipeline.run(messages=True, watch_interval_s=600)
    table = pipeline.table("_sluice.messages")
    assert (table.state, table.generation) == ("live", 2)
