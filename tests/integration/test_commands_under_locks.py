"""The real commands while other sessions hold the strongest lock on every table that has something to
deparse: nothing that asks the catalog waits for them.
"""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.command_line import Sluice
from tests.support.source_setup import since
from tests.support.sources import Database
from tools.local.sluice import Pipeline

SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE TABLE plain (id int PRIMARY KEY, v text)",
    "CREATE TABLE filtered (id int PRIMARY KEY, n int DEFAULT random()::int, m mood)",
    "CREATE TABLE parted (id int PRIMARY KEY, v text DEFAULT 'x') PARTITION BY RANGE (id)",
    "CREATE TABLE leaf PARTITION OF parted FOR VALUES FROM (0) TO (100)",
    "INSERT INTO filtered VALUES (1, 1, 'sad')",
    "INSERT INTO parted VALUES (1)",
)
LOCKED = ("filtered", "parted", "leaf")
HELD = "300s"
"""Longer than all commands take on a busy machine. One that waits finds the locks gone then, and the test fails."""


@pytest.fixture
def locked(database: Database, tmp_path: Path) -> Pipeline:
    since(database, 15, "row filters")
    database.execute(
        *SETUP,
        f"CREATE PUBLICATION {database.publication} FOR TABLE plain, filtered WHERE (id > 0), parted "
        "WITH (publish_via_partition_root = true)",
    )
    source = {"slot": database.slot, "publication": database.publication}
    return Pipeline(tmp_path / "pipeline", name="locks", dsn=database.dsn, settings={"source": source})


def test_no_command_waits_for_a_table_that_somebody_has_locked(
    locked: Pipeline, database: Database, command: Sluice
) -> None:
    run = partial(command, SLUICE_CONFIG=str(locked.config))
    begun = run("run", "--until-caught-up")
    assert begun.returncode == 0, begun.stderr
    with database.connect() as holder, holder.transaction():
        holder.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{HELD}'")
        for name in LOCKED:
            holder.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
        database.execute("INSERT INTO plain VALUES (2, 'while others are locked')")
        for words, codes in (
            (("check", "--json"), (0, 3)),
            (("plan",), (0,)),
            (("setup", "--dry-run"), (0,)),
            (("status", "--json"), (0, 10)),
            (("tables", "--json"), (0,)),
            (("slot", "show"), (0,)),
            (("tables", "pause", "public.filtered"), (0,)),
            (("run", "--until-caught-up"), (0,)),
        ):
            done = run(*words)
            assert done.returncode in codes, (words, done.returncode, done.stderr)
        holder.execute("SELECT 1")
    states = {table["table"]: table["state"] for table in json.loads(run("tables", "--json").stdout)["tables"]}
    # Nothing is applied here; a table that a lock had harmed would be quarantined or stale.
    assert states == {"plain": "snapshot", "filtered": "paused", "parted": "snapshot"}
