"""`sluice drain`: it ends well only when everything through the position is in the lake, and says what
is missing until then. `run --until-caught-up` ends well only with every table.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from sluice import faults, lsn
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.table_state import State
from sluice.errors import Interrupted
from sluice.manifest.reader import load_state
from tests.support.command_line import Sluice
from tests.support.commands import assert_ended
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline, Running
from tests.support.least_rights import pipeline_role
from tests.support.pgproxy import Cut, PgProxy
from tests.support.recorded import rows
from tests.support.source_setup import since
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders

NO_OTHERS: Mapping[str, State] = MappingProxyType({})


def applier_says(
    pipe: Pipe, number: int, through: int, *, state: State = State.LIVE, others: Mapping[str, State] = NO_OTHERS
) -> None:
    """As if an applier had come so far, and had left out `others`."""
    found, now = load_state(pipe.store), datetime.now(UTC).isoformat()
    tables = rows(found, state, complete_through_lsn=through, delta_version=number)
    live = state is State.LIVE
    left_out = ({} if live else {"public.t": str(state)}) | {name: str(one) for name, one in others.items()}
    complete = Complete(number, through, found.seq, now, {"public.t": number} if live else {}, left_out)
    pipe.store.create(keys.apply_log(number), AppliedLog(number, "test", now, tables, now).encode())
    pipe.store.create(keys.apply_complete(number), complete.encode())


def carried(database: Database, folder: Path, command: Sluice, *statements: str) -> Pipe:
    """A pipeline with a table, through which ingest has carried all that there is."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", *statements, "CREATE PUBLICATION {p} FOR TABLE t")
    pipe = Pipe(database, folder, command=command)
    catch_up(pipe)
    return pipe


def catch_up(pipe: Pipe) -> None:
    assert_ended(pipe("run", "--until-caught-up"), 0)


def test_drain_waits_for_manifest_slot_tables_and_lake_and_names_what_is_missing(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    pipe = carried(database, tmp_path, command, "INSERT INTO t VALUES (1)")
    database.execute("INSERT INTO t VALUES (2)")
    nothing = ("the manifest has", "and no ingest is connected", "acknowledged is")
    assert_ended(pipe("drain", "--timeout", "1s"), 75, *nothing, "the applier has not stated a position yet")

    catch_up(pipe)
    through = load_state(pipe.store).through_lsn
    target = ("--to-lsn", lsn.show(through), "--timeout", "1s")
    applier_says(pipe, 1, through - 1)
    late = pipe("drain", *target)
    assert_ended(late, 75, f"the lake is complete through {lsn.show(through - 1)}")
    assert "the manifest has" not in late.stderr

    applier_says(pipe, 2, through, state=State.QUARANTINED)
    assert_ended(pipe("drain", *target), 75, "quarantined: public.t")

    applier_says(pipe, 3, through)
    there = pipe("drain", *target, "--json")
    assert_ended(there, 0)
    assert json.loads(there.stdout)["complete_through_lsn"] == lsn.show(through)
    assert_ended(pipe("drain", "--to-lsn", lsn.show(through + 1), "--timeout", "1s"), 75)


@slow
def test_drain_does_not_wait_for_a_table_that_was_detached(database: Database, tmp_path: Path, command: Sluice) -> None:
    pipe = carried(database, tmp_path, command)
    through = load_state(pipe.store).through_lsn
    target = ("--to-lsn", lsn.show(through), "--timeout", "1s")
    applier_says(pipe, 1, through, others={"public.gone": State.DETACHED, "public.back": State.STALE})
    assert_ended(pipe("drain", *target), 75, "the applier has left out public.back so far")
    applier_says(pipe, 2, through, others={"public.gone": State.DETACHED})
    assert_ended(pipe("drain", *target), 0)


def test_drain_does_not_wait_for_what_only_the_configuration_asks_for(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    """Files that cannot be clustered lack no row, and rules of a table that is gone keep nothing out of the lake."""
    pipe = carried(database, tmp_path, command)
    through = load_state(pipe.store).through_lsn
    applier_says(pipe, 1, through)
    more = "tables: {public.t: {cluster_by: [nowhere]}, public.dropped: {columns: {v: exclude}}}\n"
    pipe.config.write_text(pipe.config.read_text() + more)
    planned = pipe("plan")
    assert (planned.returncode, "public.dropped" in planned.stdout, "nowhere" in planned.stdout) == (14, True, True)
    assert_ended(pipe("drain", "--to-lsn", lsn.show(through), "--timeout", "1s"), 0)


def test_drain_ends_at_once_when_the_slot_is_lost(database: Database, tmp_path: Path, command: Sluice) -> None:
    pipe = carried(database, tmp_path, command)
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    assert_ended(pipe("drain", "--timeout", "1h"), 7, "MISSING")
    assert_ended(pipe("drain", "--timeout", "soon"), 2)


def test_drain_waits_for_what_only_the_catalog_shows(database: Database, tmp_path: Path, command: Sluice) -> None:
    """A table that joins, and a column without a row: no row comes, and no position says that they are missing."""
    pipe = carried(database, tmp_path, command)
    through = load_state(pipe.store).through_lsn
    target = ("--to-lsn", lsn.show(through), "--timeout", "1s")
    applier_says(pipe, 1, through)
    assert_ended(pipe("drain", *target), 0)
    database.execute("ALTER TABLE t ADD n int DEFAULT 7")
    assert_ended(pipe("drain", *target), 75, "changes that the manifest does not have: public.t")
    catch_up(pipe)
    assert_ended(pipe("drain", *target), 75, "has not reported on all tables")
    applier_says(pipe, 2, load_state(pipe.store).through_lsn)
    assert_ended(pipe("drain", *target), 0)
    database.execute("CREATE TABLE joins (id int PRIMARY KEY)", "ALTER PUBLICATION {p} ADD TABLE joins")
    assert_ended(pipe("drain", *target), 75, "does not have: public.joins")


def _is_examined(pipe: Pipe, target: int) -> bool:
    return load_state(pipe.store).examined_lsn >= target


@slow
def test_a_quiet_ingest_is_asked_for_its_position_by_drain_and_wait(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    """With a spool on an object store it records it every five minutes by itself, and `wait` waits for one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION {p} FOR TABLE t")
    pipe = Pipe(database, tmp_path, command=command)
    pipe.environment["SLUICE_SPOOL__PROGRESS_INTERVAL"] = "1h"
    with pipe.start().streaming().live():
        for words in (("drain",), ("wait", "--now")):
            database.execute("CREATE TABLE IF NOT EXISTS beside (id int)", "INSERT INTO beside VALUES (1)")
            (target,) = database.one("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
            # Nobody applies: the lake has not even a directory.
            assert pipe(*words, "--timeout", "1s").returncode == 75
            pipe.wait(partial(_is_examined, pipe, target))
    assert list(pipe.store.list(keys.CONTROL)) == []


@slow
def test_drain_ends_in_time_though_the_server_does_not_answer_a_look(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    pipe = carried(database, tmp_path, command)
    through = load_state(pipe.store).through_lsn
    applier_says(pipe, 1, through)
    with database.connect() as locking, locking.transaction():
        locking.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
        locking.execute("LOCK TABLE pg_catalog.pg_publication_rel")
        late = pipe("drain", "--to-lsn", lsn.show(through), "--timeout", "1s")
    assert_ended(late, 75, "reading the pipeline took more than")


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
