"""`run --until-caught-up` with a table that it could not read, and with rows that are not whole."""

from pathlib import Path

from sluice import faults, lsn
from sluice.errors import Interrupted
from tests.support.command_line import Sluice
from tests.support.commands import assert_ended
from tests.support.ingesting import IngestPipeline, Running
from tests.support.least_rights import pipeline_role
from tests.support.pgproxy import Cut, PgProxy
from tests.support.source_setup import since
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders


def test_a_batch_that_left_a_table_out_ends_with_75_and_names_it(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    orders(database)
    create = ("CREATE TABLE hidden (id int PRIMARY KEY)", "INSERT INTO hidden VALUES (1)")
    with pipeline_role(database) as role:
        database.execute(*create, f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON orders TO {role}")
        assert Pipe(database, tmp_path, command=command)("setup").returncode == 0
        pipe = Pipe(database, tmp_path, dsn=database.server.dsn(user=role, dbname=database.name), command=command)
        assert_ended(pipe("run", "--until-caught-up"), Interrupted.exit_code, "error: ", "public.hidden")
        database.execute(f"GRANT SELECT ON hidden TO {role}")
        assert pipe("run", "--until-caught-up").returncode == 0


def test_it_ends_although_rows_of_a_transaction_that_goes_on_said_something_of_their_table(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    """The target is reached, nobody reads the rest of the transaction, and what its rows said is never stored."""
    database, gate = pipeline.database, tmp_path / "gate"
    since(database, 15, "row filters")
    database.execute(
        "CREATE TABLE t (id int, sent bool, big text, PRIMARY KEY (id, sent))",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, false, repeat('x', 5000))",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE PUBLICATION {p} FOR TABLE t WHERE (sent), u",
    )
    with PgProxy(database.server.port) as proxy, database.connect() as other:
        pipeline.dsn = proxy.dsn(dbname=database.name)
        pipeline.run()
        database.execute("CREATE TABLE w (id int PRIMARY KEY)", "ALTER PUBLICATION {p} ADD TABLE w")
        target = lsn.parse(pipeline.wal_end())
        running = Running(pipeline, pipeline.options(), target)
        try:
            with other.transaction():
                other.execute("LOCK TABLE w")
                running.thread.start()
                running.wait_until(lambda: pipeline.state().examined_lsn >= target)
                faults.arm(f"decode.before=hold:{gate}")
                begun = proxy.cut(Cut.SILENT, matches=lambda message: message.tag == "I", count=2)
                database.execute("INSERT INTO u VALUES (1)", "UPDATE t SET sent = true")
                assert begun.wait(60)
                running.wait_until(lambda: faults.passages("decode.before") > 0)
            running.wait_until(lambda: running.status.state == "draining")
        finally:
            gate.touch()
        running.thread.join(30)
        assert not running.thread.is_alive(), "it waits for what nobody reads"
        assert running.error is None
    faults.arm("")
    assert pipeline.table("public.t").state == "live"
    pipeline.dsn = ""
    pipeline.run()
    assert pipeline.table("public.t").state == "stale"
