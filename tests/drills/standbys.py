"""Streaming standbys of a local server: taken by pg_basebackup, kept in step, promoted.

From 17 on the server itself keeps a slot of the primary in step on its standbys. Before, tools for
high availability carry the slot's state over while the standby is down, as `carry_slot` does.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg

from sluice import lsn
from sluice.store.opening import open_store
from tests.support.background import beside
from tests.support.ingesting import IngestPipeline
from tests.support.oracle import Spool
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.binaries import default_major, helper_account
from tools.local.child import spawn
from tools.local.postgres import PostgresServer

SYNCHRONISES = default_major() >= 17
"""Whether the server keeps slots in step by itself."""
SNAPSHOTS = default_major() >= 16


@contextmanager
def standby_of(primary: PostgresServer, name: str, *, keeps_slots: bool = SYNCHRONISES) -> Iterator[PostgresServer]:
    """A hot standby that streams from `primary` through the physical slot `name`; stopped and
    removed at the end. With `keeps_slots` it keeps the primary's slots in step.
    """
    with primary.superuser() as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (name,))
    directory = Path(tempfile.mkdtemp(prefix="sluice-standby-"))
    hand_to_server(directory)
    address = f"host=127.0.0.1 port={primary.port} user=postgres"
    try:
        settings = {
            "primary_conninfo": f"{address} dbname=postgres application_name={name}",
            "primary_slot_name": name,
            "hot_standby": "on",
            "hot_standby_feedback": "on",
            "wal_receiver_status_interval": "1",
            **({"sync_replication_slots": "on"} if keeps_slots else {}),
        }
        standby = PostgresServer(directory / "data", bin_dir=primary.bin_dir, settings=settings)
        command = [str(primary.bin_dir / "pg_basebackup"), "-d", address, "-D", str(standby.data_dir)]
        backup = spawn(
            [*command, "-X", "stream", "-c", "fast"], log=directory / "basebackup.log", account=helper_account()
        )
        assert backup.wait() == 0, (directory / "basebackup.log").read_text()
        (standby.data_dir / "standby.signal").touch()
        hand_to_server(standby.data_dir / "standby.signal")
        try:
            standby.start()
            yield standby
        finally:
            standby.stop("immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def hand_to_server(*paths: Path) -> None:
    """They belong to the account that servers run as."""
    account = helper_account()
    if account is not None:
        for path in paths:
            os.chown(path, account.pw_uid, account.pw_gid)


@contextmanager
def snapshots_logged(primary: PostgresServer) -> Iterator[None]:
    """A slot on a standby begins where the primary has logged which transactions run: it does that by
    itself, while there are writes, every 15 s.
    """

    def log(ended: threading.Event) -> None:
        with primary.superuser() as connection:
            while not ended.wait(0.2):
                connection.execute("SELECT pg_log_standby_snapshot()")

    with beside(log):
        yield


def catch_up(primary: PostgresServer, standby: PostgresServer) -> None:
    """Returns when the standby has replayed what the primary has written by now."""
    with primary.superuser() as connection:
        target = lsn.parse(_one(connection, "SELECT pg_current_wal_flush_lsn()::text"))
    with standby.superuser() as connection:
        query = "SELECT COALESCE(pg_last_wal_replay_lsn(), '0/0')::text"
        wait_until(lambda: lsn.parse(_one(connection, query)) >= target, what="the standby replays")


def hand_over_slot(
    primary: PostgresServer, standby: PostgresServer, name: str, *, advance: Callable[[], object]
) -> None:
    """The standby has the slot `name` as the primary has it. `advance` moves it on the primary: a
    standby keeps no slot that is older than what it has itself.
    """
    if not SYNCHRONISES:
        with primary.superuser() as there:  # past what the standby has no WAL of
            there.execute("SELECT pg_log_standby_snapshot()" if SNAPSHOTS else "CHECKPOINT")
        advance()
        advance()
        carry_slot(primary, standby, name)
        return
    with primary.superuser() as there, standby.superuser("postgres") as here:

        def is_kept() -> bool:
            there.execute("SELECT pg_log_standby_snapshot()")
            advance()
            catch_up(primary, standby)
            kept = here.execute(
                "SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots "
                "WHERE slot_name = %s",
                (name,),
            ).fetchone()
            return kept is not None and bool(kept[0])

        wait_until(is_kept, what="the slot is kept in step")


def carry_slot(primary: PostgresServer, standby: PostgresServer, name: str) -> None:
    """Copies the slot's state while the standby is down."""
    with primary.superuser() as connection:
        connection.execute("CHECKPOINT")
    catch_up(primary, standby)
    standby.stop()
    there, here = (server.data_dir / "pg_replslot" / name for server in (primary, standby))
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(there, here)
    hand_to_server(here, *here.iterdir())
    standby.start()


def promote(standby: PostgresServer) -> None:
    """Returns when the standby accepts writes."""
    with standby.superuser() as connection:
        connection.execute("SELECT pg_promote(true, 60)")
        wait_until(
            lambda: _one(connection, "SELECT pg_is_in_recovery()::text") == "false", what="the standby is promoted"
        )


def _one(connection: psycopg.Connection, query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


class Drill:
    """A pipeline on a primary of its own, with the spool in `folder`."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.folder = folder
        self.database = database
        self.pipeline = IngestPipeline(database, open_store(folder.as_uri(), prefix="test/", options={}))
        database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (0, 'before')")

    @property
    def primary(self) -> PostgresServer:
        return self.database.server

    def insert(self, first: int, count: int = 20) -> None:
        """Each row in a transaction of its own."""
        self.database.execute(*(f"INSERT INTO a VALUES ({key}, 'row {key}')" for key in range(first, first + count)))

    def hand_over(self, standby: PostgresServer) -> None:
        """The slot, as it is now or a moment ago."""
        hand_over_slot(self.primary, standby, self.database.slot, advance=self.pipeline.run)

    def either(self, *standbys: PostgresServer) -> str:
        """A DSN of all servers, of which the one that accepts writes is meant."""
        ports = ",".join(str(server.port) for server in (self.primary, *standbys))
        hosts = ",".join(["127.0.0.1"] * (1 + len(standbys)))
        user = f"host={hosts} port={ports} user=postgres password=x dbname={self.database.name}"
        return f"{user} target_session_attrs=read-write"

    def move_to(self, server: PostgresServer) -> None:
        self.database = replace(self.database, server=server)
        self.pipeline = replace(self.pipeline, database=self.database)

    def is_complete(self) -> None:
        """Returns when the manifest has all that is committed by now."""
        target = lsn.parse(self.pipeline.wal_end())
        wait_until(lambda: self.pipeline.state().through_lsn >= target, what="the manifest is complete")

    def opened(self) -> tuple[int, list[int]]:
        """The timeline of the newest epoch, and those before it."""
        opened = self.pipeline.state().opened
        assert opened is not None
        return opened.timeline, [fork.timeline for fork in opened.forks]

    def assert_equal(self) -> None:
        """The spool, read without any code of the product, has what the source has, each transaction once."""
        spool = Spool(self.folder / "test")
        spool.read()
        with self.database.connect() as connection:
            verdicts = spool.assert_equal(connection, self.database.publication)
        assert [verdict.state for verdict in verdicts] == ["live"]
