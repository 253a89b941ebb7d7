"""Marks that the remedy they name cannot take away."""

import pytest

from service.contract.control import COPY, Request
from service.contract.keys import control_request
from tests.support.ingesting import Pipeline


def ask(pipeline: Pipeline, schema: str, table: str) -> None:
    pipeline.store.create(control_request("one"), Request(COPY, schema, table, "2030-01-01T00:00:00+00:00").encode())


@pytest.mark.parametrize("state", ["stale", "quarantined"])
def test_a_marked_table_that_was_dropped_is_marked_for_ever(pipeline: Pipeline, state: str) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE u (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t, u")
    pipeline.run(tables=())
    database.execute("ALTER TABLE t RENAME COLUMN v TO w" if state == "stale" else 'ALTER TABLE t ADD COLUMN "_sluice_x" int', "INSERT INTO t VALUES (1, 1)")
    pipeline.run(tables=())
    pipeline.run(tables=())
    print("STATE", pipeline.table("public.t").state, pipeline.table("public.t").reason)
    database.execute("DROP TABLE t")
    ask(pipeline, "public", "t")
    pipeline.run(tables=())
    pipeline.run(tables=())
    print("STATE", pipeline.table("public.t").state, pipeline.table("public.t").reason, list(pipeline.store.list("control/")))
    assert pipeline.table("public.t").state == "detached"


def test_messages_after_the_publication_was_made_again(pipeline: Pipeline) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    pipeline.run(tables=(), messages=True)
    with pipeline.running(tables=(), messages=True) as running:
        running.wait_until(lambda: running.ingest.view.connected)
        database.execute(
            f"DROP PUBLICATION {database.publication}", "INSERT INTO t VALUES (1)", f"CREATE PUBLICATION {database.publication} FOR TABLE t", "INSERT INTO t VALUES (2)"
        )
        running.wait_until(lambda: pipeline.table("public.t").state == "stale")
        running.wait_until(lambda: running.ingest.view.state == "streaming" and running.ingest.view.connected)
        messages = pipeline.state().tables["0"]
        print("STATE", messages.state, messages.reason)
        assert messages.state != "stale" or "sluice copy _sluice.messages" not in messages.reason
