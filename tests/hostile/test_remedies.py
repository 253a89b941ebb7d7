"""Marks that the remedy they name cannot take away."""

from tests.support.ingesting import Pipeline


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
