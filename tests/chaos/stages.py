"""One pipeline whose stages are made to fail, one edge at a time, with the real ingest in this
process and a real server behind the proxy.

A case arms a fault point behind which work waits, lets it fail, and starts again in good health.
What is judged is the manifest, against a second slot on the same WAL, and every acknowledgement,
against what was durable when it was sent.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from sluice import faults, lsn
from sluice.errors import ServiceError
from sluice.ingest import supervisor as ingest_module
from sluice.ingest.snapshot.chunk_round import SnapshotLimits
from sluice.store.opening import open_store
from tests.chaos.witness import Witness
from tests.support.ingesting import IngestPipeline, Running
from tests.support.oracle import Spool
from tests.support.pgproxy import PgProxy
from tests.support.pipeline import AckOracle
from tests.support.sources import Database

BOUND_SECONDS = 60.0
"""For anything that is waited for. A quiet machine needs a hundredth of it."""
_LOOK_SECONDS = 0.005
_BUSY_SECONDS = 0.1
_UNITS = "unit.submit.after"


class Situation(Enum):
    """What surrounds the failure."""

    IDLE = "idle behind"
    QUEUED = "queued behind"
    DRAINING = "draining"


@dataclass(frozen=True)
class Edge:
    """Where one stage hands to another: `point` fails on its first passage after `change` was
    committed.

    `behind` says when later work has come as near to the failing stage as it can while that is
    held: `handed` to the decoder, or `submitted` as a unit. A point `on_loop` cannot be held there,
    so the commit thread is held in its place until work waits behind. One thread passes a point
    that is `serial`: after a failure that ends the process nothing may pass it again, and a drain
    must not hide that failure.
    """

    point: str
    behind: str
    on_loop: bool = False
    serial: bool = False
    change: str = "INSERT INTO a (t) VALUES ('first')"


EDGES = (
    Edge("batch.received", "submitted", on_loop=True),
    Edge("decode.before", "handed", serial=True),
    Edge("build.before", "handed", serial=True),
    Edge(
        "catalog.asked",
        "handed",
        change="ALTER TABLE a ADD COLUMN {fresh} int; INSERT INTO a (t, {fresh}) VALUES ('shaped', 1)",
    ),
    Edge("unit.cut.before", "handed", serial=True),
    Edge("unit.submit.before", "handed", serial=True),
    Edge("segment.put.before", "submitted"),
    Edge("store.put.before", "submitted"),
    Edge("segment.put.after", "submitted"),
    Edge("commit.before", "submitted", serial=True),
    Edge("manifest.append.before", "submitted"),
    Edge("store.create.before", "submitted"),
    Edge("manifest.append.after", "submitted"),
    Edge("commit.after", "submitted"),
    Edge("receipt.before", "submitted", on_loop=True),
    Edge("status.before", "submitted", on_loop=True),
    Edge("status.after", "submitted", on_loop=True),
)


PASSING = ("SourceUnavailable", "StoreUnavailable")
"""Errors that a stop may end with as with a success: what was left out comes again with the next
connection, and nothing was acknowledged for it.
"""
SNAPSHOT_EDGES = (
    "snapshot.locked",
    "snapshot.read",
    "segment.put.before",
    "segment.put.after",
    "snapshot.chunk.before",
    "snapshot.chunk.after",
    "snapshot.taken",
    "snapshot.final.before",
    "snapshot.final.after",
)
"""Between reading a table, uploading its rows and the entries that publish them."""
IN_PARTS = SnapshotLimits(chunk_bytes=8192)
"""A part for each block."""


class Stages:
    """A pipeline that has joined its tables and has nothing to do. Used by one case after the
    other, as long as each ends well.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self.folder = folder
        self.spool = Spool(folder / "spool" / "test")
        self.database = database
        self.proxy = PgProxy(database.server.port, on_status=AckOracle(folder / "spool" / "test"))
        store = open_store((folder / "spool").as_uri(), prefix="test/", options={})
        self.pipeline = IngestPipeline(database, store, dsn=self.proxy.dsn(dbname=database.name))
        self._numbers = 0
        database.execute(
            "CREATE TABLE a (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, t text)",
            "CREATE TABLE b (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
        )
        self.pipeline.run()
        self._witness = Witness(database)

    def close(self) -> None:
        faults.arm("")
        self.proxy.close()

    def case(self, edge: Edge, error: str, situation: Situation) -> None:
        """Fails at `edge` with `error`, then starts again. AssertionError says what was lost,
        doubled, acknowledged too early, or never ended.
        """
        self._numbers += 1
        gate = self.folder / f"gate-{self._numbers}"
        running = self._started()
        try:
            self._publishes(running)
            self._fail(running, gate, edge, error, situation)
        finally:
            gate.touch()
            running.stop()
            passages = faults.passages(edge.point)
            faults.arm("")
        self._assert_ended_by_name(running, error)
        if edge.serial and (running.error is not None or situation is Situation.DRAINING):
            assert passages == 1, f"after it had failed, {edge.point} was passed {passages - 1} times more"
        if edge.serial and situation is Situation.DRAINING and error not in PASSING:
            assert running.error is not None, "a drain that left something out ended as if it had not"
        self.assert_healthy()

    def snapshot_case(self, point: str, error: str, situation: Situation) -> None:
        """A table's first snapshot is read and that fails at `point`, with another table and
        with changes of both behind it, as `situation` says.
        """
        self._numbers += 1
        gate = self.folder / f"gate-{self._numbers}"
        added = [f"added_{self._numbers}_{which}" for which in "ab"]
        for table in added:
            self.database.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, t text)",
                f"INSERT INTO {table} SELECT i, repeat('x', 100) FROM generate_series(1, 200) i",
                f"ALTER PUBLICATION {self.database.publication} ADD TABLE {table}",
            )
        faults.arm(f"{point}=hold:{gate}+raise:{error}@1")
        running = Running(self.pipeline, self.pipeline.options(watch_interval_s=3600.0, snapshot=IN_PARTS))
        running.thread.start()
        try:
            self.wait(lambda: faults.passages(point) > 0, running, f"{point} is reached")
            if situation is not Situation.IDLE:
                for table in added:
                    self.commit(
                        f"UPDATE {table} SET t = 'changed' WHERE id < 10; DELETE FROM {table} WHERE "
                        f"id = 11; INSERT INTO {table} VALUES (1000, 'new')"
                    )
                position = self.commit("INSERT INTO b DEFAULT VALUES")
                self.wait(lambda: _handed(running) > position, running, "the transactions behind are received")
            if situation is Situation.DRAINING:
                running.ask_to_stop()
            gate.touch()
            if situation is not Situation.DRAINING:
                self._goes_on_or_ends(running)
        finally:
            faults.arm("")
            gate.touch()
            running.stop()
        self._assert_ended_by_name(running, error)
        self.assert_healthy()

    @contextmanager
    def at_work(self) -> Iterator[Running]:
        """An ingest that streams and has published. It is stopped in the end, and what it ended
        with is the caller's to judge.
        """
        running = self._started()
        try:
            self._publishes(running)
            yield running
        finally:
            faults.arm("")
            running.stop()

    def assert_healthy(self) -> None:
        """A start in good health has everything."""
        self.pipeline.run(watch_interval_s=3600.0)
        self.assert_whole()

    def _started(self) -> Running:
        running = Running(self.pipeline, self.pipeline.options(watch_interval_s=3600.0))
        running.thread.start()
        return running

    def _publishes(self, running: Running) -> None:
        """It streams, and the relations are known to the decoder, so that nothing of later work
        depends on what fails.
        """
        self.wait(lambda: running.ingest.status.state == "streaming", running, "it streams")
        position = self.commit("INSERT INTO a (t) VALUES ('before'); INSERT INTO b DEFAULT VALUES")
        self.wait(lambda: self.proxy.flushed > position, running, "it publishes")
        assert running.error is None, running.error

    def assert_whole(self) -> None:
        """The manifest has each transaction that the second slot shows, once and with its rows, and
        no acknowledgement was ever wrong.
        """
        self.proxy.check()
        self.spool.read()
        self._witness.assert_saw(self.spool.transactions)
        with self.database.connect() as connection:
            verdicts = self.spool.assert_equal(connection, self.database.publication)
        assert {verdict.state for verdict in verdicts} == {"live"}, verdicts

    def _fail(self, running: Running, gate: Path, edge: Edge, error: str, situation: Situation) -> None:
        failing = f"{edge.point}=raise:{error}@1"
        held = "commit.before" if edge.on_loop else edge.point
        faults.arm(
            f"{held}=hold:{gate}{'' if edge.on_loop else f'+raise:{error}'}@1"
            + ("" if held == _UNITS else f",{_UNITS}=count")
        )
        self.commit(edge.change)
        self.wait(lambda: faults.passages(held) > 0, running, f"{held} is reached")
        if situation is not Situation.IDLE:
            self._queue(running, edge)
        if edge.on_loop:
            faults.arm(failing)
        elif situation is Situation.QUEUED:
            # A busy event loop hears of the failure late: what waits behind must not depend on its
            # being stopped in time.
            running.ask(lambda: threading.Event().wait(_BUSY_SECONDS))
        if situation is Situation.DRAINING:
            self._drain(running, edge)
        gate.touch()
        if situation is not Situation.DRAINING:
            self._goes_on_or_ends(running)

    def _queue(self, running: Running, edge: Edge) -> None:
        """Two more transactions are as far as they come while the point is held."""
        self.commit("INSERT INTO b DEFAULT VALUES")
        position = self.commit("INSERT INTO a (t) VALUES ('behind')")
        if edge.behind == "submitted":
            self.wait(lambda: faults.passages(_UNITS) > 1, running, "a unit waits behind")
        else:
            self.wait(lambda: _handed(running) > position, running, "the transactions behind wait for the decoder")

    def _drain(self, running: Running, edge: Edge) -> None:
        """A point on the loop may fail before the drain has begun, and nothing but the gate is
        waited for then.
        """
        running.ask_to_stop()
        failed = edge.point if edge.on_loop else ""
        self.wait(
            lambda: faults.passages(failed) > 0 or _view_state(running) in ("draining", "reconnecting", "stopped"),
            running,
            "it drains",
        )

    def _goes_on_or_ends(self, running: Running) -> None:
        """It recovers by itself, which the acknowledgement of a new transaction shows, or the
        process ends. It must not hang.
        """
        position = self.commit("INSERT INTO a (t) VALUES ('afterwards')")
        self.wait(lambda: self.proxy.flushed > position, running, "it goes on or ends")

    def commit(self, statements: str) -> int:
        """One transaction; a position before its commit and behind everything else."""
        with self.database.connect() as connection, connection.transaction():
            for statement in statements.format(fresh=f"c{self._numbers}").split("; "):
                connection.execute(statement.encode())
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return lsn.parse(row[0])

    def wait(self, holds: Callable[[], bool], running: Running, what: str) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        tick = threading.Event()
        while not holds() and running.thread.is_alive():
            assert time.monotonic() < deadline, (
                f"{what}: not within {BOUND_SECONDS:.0f} s, state {_view_state(running)}"
            )
            tick.wait(_LOOK_SECONDS)

    def _assert_ended_by_name(self, running: Running, error: str) -> None:
        """Stopped as asked, or by the error that was raised, or by one of ours."""
        ended = running.error
        assert ended is None or isinstance(ended, ServiceError) or type(ended).__name__ == error, f"ended by {ended!r}"


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "RECONNECT_SECONDS", (0.05,))


def _view_state(running: Running) -> str:
    return running.ingest.status.state


def _handed(running: Running) -> int:
    """Through which position everything was handed to the decoder."""
    found = [0]

    def look() -> None:
        session = running.ingest._session
        found[0] = session.watermark.received_lsn if session is not None else 0

    running.call(look)
    return found[0]
