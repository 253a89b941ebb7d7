"""`sluice drain`: it ends well only when everything through the position is in the lake, and says what
is missing until then.
"""

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sluice import lsn
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.table_state import State
from sluice.manifest.reader import load_state
from tests.support.recorded import rows
from tests.support.sources import Database
from tests.support.surfaces import Pipe


def applier_says(pipe: Pipe, number: int, through: int, *, state: State = State.LIVE) -> None:
    """As if an applier had come so far."""
    found, now = load_state(pipe.store), datetime.now(UTC).isoformat()
    tables = rows(found, state, complete_through_lsn=through, delta_version=number)
    live = state is State.LIVE
    complete = Complete(
        number, through, found.seq, now, {"public.t": number} if live else {}, {} if live else {"public.t": str(state)}
    )
    pipe.store.create(keys.apply_log(number), AppliedLog(number, "test", now, tables, now).encode())
    pipe.store.create(keys.apply_complete(number), complete.encode())


def test_drain_waits_for_manifest_slot_tables_and_lake_and_names_what_is_missing(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    database.execute("INSERT INTO t VALUES (2)")
    behind = pipe("drain", "--timeout", "1s")
    assert behind.returncode == 75
    assert "the manifest has" in behind.stderr
    assert "and no ingest is connected" in behind.stderr
    assert "acknowledged is" in behind.stderr
    assert "the applier has not stated a position yet" in behind.stderr

    assert pipe("run", "--until-caught-up").returncode == 0
    through = load_state(pipe.store).through_lsn
    target = ("--to-lsn", lsn.show(through), "--timeout", "1s")
    applier_says(pipe, 1, through - 1)
    late = pipe("drain", *target)
    assert late.returncode == 75
    assert f"the lake is complete through {lsn.show(through - 1)}" in late.stderr
    assert "the manifest has" not in late.stderr

    applier_says(pipe, 2, through, state=State.QUARANTINED)
    left_out = pipe("drain", *target)
    assert left_out.returncode == 75
    assert "quarantined: public.t" in left_out.stderr

    applier_says(pipe, 3, through)
    there = pipe("drain", *target, "--json")
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout)["complete_through_lsn"] == lsn.show(through)
    assert pipe("drain", "--to-lsn", lsn.show(through + 1), "--timeout", "1s").returncode == 75


def test_drain_ends_at_once_when_the_slot_is_lost(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    lost = pipe("drain", "--timeout", "1h")
    assert lost.returncode == 7
    assert "MISSING" in lost.stderr
    assert pipe("drain", "--timeout", "soon").returncode == 2


def test_drain_waits_for_what_only_the_catalog_shows(database: Database, tmp_path: Path) -> None:
    """A table that joins, and a column without a row: no row comes, and no position says that they are missing."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    through = load_state(pipe.store).through_lsn
    target = ("--to-lsn", lsn.show(through), "--timeout", "1s")
    applier_says(pipe, 1, through)
    assert pipe("drain", *target).returncode == 0
    database.execute("ALTER TABLE t ADD n int DEFAULT 7")
    added = pipe("drain", *target)
    assert (added.returncode, "changes that the manifest does not have: public.t" in added.stderr) == (75, True), (
        added.stderr
    )
    assert pipe("run", "--until-caught-up").returncode == 0
    stale = pipe("drain", *target)
    assert (stale.returncode, "has not reported on all tables" in stale.stderr) == (75, True), stale.stderr
    applier_says(pipe, 2, load_state(pipe.store).through_lsn)
    assert pipe("drain", *target).returncode == 0
    database.execute(
        "CREATE TABLE joins (id int PRIMARY KEY)", f"ALTER PUBLICATION {database.publication} ADD TABLE joins"
    )
    joining = pipe("drain", *target)
    assert (joining.returncode, "does not have: public.joins" in joining.stderr) == (75, True), joining.stderr


def _is_examined(pipe: Pipe, target: int) -> bool:
    return load_state(pipe.store).examined_lsn >= target


def test_a_quiet_ingest_is_asked_for_its_position_by_drain_and_wait(database: Database, tmp_path: Path) -> None:
    """With a spool on an object store it records it every five minutes by itself, and `wait` waits for one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    pipe = Pipe(database, tmp_path)
    (tmp_path / "lake").mkdir()
    pipe.environment["SLUICE_SPOOL__PROGRESS_INTERVAL"] = "1h"
    with pipe.start().streaming().live():
        for command in (("drain",), ("wait", "--now")):
            database.execute("CREATE TABLE IF NOT EXISTS beside (id int)", "INSERT INTO beside VALUES (1)")
            (target,) = database.one("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
            assert pipe(*command, "--timeout", "1s").returncode == 75  # nobody applies
            pipe.wait(partial(_is_examined, pipe, target))
    assert list(pipe.store.list(keys.CONTROL)) == []


def test_drain_ends_in_time_though_the_server_does_not_answer_a_look(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    through = load_state(pipe.store).through_lsn
    applier_says(pipe, 1, through)
    with database.connect() as locking, locking.transaction():
        locking.execute("LOCK TABLE pg_catalog.pg_publication_rel")
        late = pipe("drain", "--to-lsn", lsn.show(through), "--timeout", "1s", timeout=30)
    assert (late.returncode, "reading the pipeline took more than" in late.stderr) == (75, True), late.stderr
