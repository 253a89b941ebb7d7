"""Applications that read what they have just written: each writes a row, asks where the log ends, waits for that
position, and reads all tables as of the newest boundary.

One process runs many such sessions, and looks at the lake for all of those that wait. So a boundary is read once by a
process, and every session whose position it holds checks its own row in it.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any

import psycopg

from sluice_lake import AsOf, Lake, TableLeftOut
from sluice_lake.positions import lsn_of
from tests.e2e.readers import endpoint_says_so, newest_of
from tests.spark.protocol_reader import DeltaFolder

TABLES = ("credits", "debits")
"""Every write changes its row in both of them, in one transaction."""
PATIENCE_SECONDS = 600.0
"""What a wait may take while everything is started again on a busy machine."""
WRITE = (
    "INSERT INTO {} VALUES (%(id)s, %(value)s, repeat('x', 20 + %(value)s %% 50)) "
    "ON CONFLICT (id) DO UPDATE SET value = excluded.value, padding = excluded.padding"
)
DELETE = "DELETE FROM {} WHERE id = %(id)s"
ONE_IN = 7
"""Writes that delete the row."""

Rows = dict[int, int]
"""The value of each row of a table, by its id."""


def by_arrow(now: AsOf, name: str) -> Rows:
    found = now.arrow(name, columns=["id", "value"])
    return dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


def by_duckdb(now: AsOf, name: str) -> Rows:
    with closing(now.duckdb(tables=[name])) as connection:
        return dict(connection.execute(f"SELECT id, value FROM {name}").fetchall())


def by_protocol(now: AsOf, name: str) -> Rows:
    """By a reader that shares nothing with the others."""
    version = next(table.version for table in now.tables if table.table == name)
    rows = DeltaFolder(Path(now.uri_of(name).removeprefix("file://"))).state(version).rows()
    return {row["id"]: row["value"] for row in rows}


READERS: dict[str, Callable[[AsOf, str], Rows]] = {"arrow": by_arrow, "duckdb": by_duckdb, "protocol": by_protocol}


@dataclass(frozen=True)
class Place:
    """Where sessions write and read. Those of the reader `endpoint_for` wait by the applier's endpoint."""

    dsn: str
    lake_uri: str
    port: int
    endpoint_for: str = "arrow"


@dataclass
class Seen:
    """What the sessions of a process have found. `loops` are those that were checked."""

    loops: int = 0
    left_out: int = 0
    by_endpoint: int = 0
    boundaries: set[int] = field(default_factory=set)
    stale: list[str] = field(default_factory=list)


class Sessions:
    """Sessions `first` to `first + count`, which read by `reader`."""

    def __init__(self, place: Place, reader: str, first: int, count: int) -> None:
        self._place = place
        self._reader = reader
        self._lake = Lake(place.lake_uri)
        self._idle = list(range(first, first + count))
        self._values = dict.fromkeys(self._idle, 0)
        self._waiting: dict[int, int] = {}
        """Positions of what was written, by session."""
        self._choice = random.Random(first)
        self.seen = Seen()

    def run(self, stop: Event) -> Iterator[int]:
        """Goes on until `stop`. Yields how many loops have ended, now and then."""
        while not stop.is_set():
            self._write()
            self._wait(min(self._waiting.values()))
            before = self.seen.loops
            self._read()
            yield self.seen.loops - before

    def _write(self) -> None:
        """What every idle session writes. A server that dies takes a session with it, which then writes anew: whether
        its last write was committed, it cannot know.
        """
        self._choice.shuffle(self._idle)
        while True:
            try:
                with closing(psycopg.connect(self._place.dsn, autocommit=True, connect_timeout=10)) as connection:
                    while self._idle:
                        self._waiting[self._idle[-1]] = self._written(connection, self._idle[-1])
                        self._idle.pop()
            except psycopg.OperationalError:
                if not self._waiting:
                    time.sleep(0.1)  # the server is started again
                    continue
            return

    def _written(self, connection: psycopg.Connection, session: int) -> int:
        self._values[session] += 1
        values = {"id": session, "value": self._values[session]}
        statement = DELETE if values["value"] % ONE_IN == 0 else WRITE
        with connection.transaction():
            for table in TABLES:
                connection.execute(statement.format(table).encode(), values)
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return lsn_of(row[0])

    def _wait(self, position: int) -> None:
        shown = f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
        if self._reader == self._place.endpoint_for and endpoint_says_so(self._place.port, shown):
            self.seen.by_endpoint += 1
            return
        self._lake.wait_for(position, PATIENCE_SECONDS, tables=TABLES)

    def _read(self) -> None:
        """Checks each session whose position can be read by now."""
        now = self._lake.as_of()
        held = [session for session, position in self._waiting.items() if position <= now.boundary.lsn]
        if not held:
            self.seen.stale.append(f"the boundary {now.boundary} came after the wait for a later position")
            return
        try:
            found = {name: READERS[self._reader](now, name) for name in TABLES}
        except TableLeftOut:
            self.seen.left_out += 1
            return
        for session in held:
            value = self._values[session]
            expected = None if value % ONE_IN == 0 else value
            for name in TABLES:
                if found[name].get(session) != expected:
                    self.seen.stale.append(
                        f"{name} by {self._reader} at boundary {now.boundary.number}, {now.boundary}: "
                        f"{found[name].get(session)} and not {expected} in session {session}"
                    )
            del self._waiting[session]
        self._idle += held
        self.seen.boundaries.add(now.boundary.number)
        self.seen.loops += len(held)


def _run(place: Place, reader: str, first: int, count: int, stop: Event, says: "Queue[Any]") -> None:
    sessions = Sessions(place, reader, first, count)
    try:
        for ended in sessions.run(stop):
            says.put(ended)
            if sessions.seen.stale:
                break
    except BaseException as error:
        says.put(f"{reader}: {type(error).__name__}: {error}")
        raise
    says.put((reader, sessions.seen))


class Running:
    """Sessions that run. `loops` are those that have ended."""

    def __init__(self, processes: list[SpawnProcess], stop: Event, says: "Queue[Any]") -> None:
        self._processes = processes
        self._stop = stop
        self._says = says
        self.loops = 0
        self.failed: list[str] = []
        self.seen: dict[str, Seen] = {}

    def look(self, *, seconds: float) -> None:
        """Waits for so many seconds at most for something to be heard. Raises when a process failed."""
        try:
            heard = self._says.get(timeout=seconds)
        except Empty:
            heard = 0
        if isinstance(heard, int):
            self.loops += heard
        elif isinstance(heard, str):
            self.failed.append(heard)
        else:
            self.seen[heard[0]] = heard[1]
        assert not self.failed, self.failed
        assert not [line for one in self.seen.values() for line in one.stale], self.seen

    def end(self) -> dict[str, Seen]:
        """What all of them saw, once they have ended their last loops."""
        self._stop.set()
        while len(self.seen) < len(self._processes):
            assert any(process.is_alive() for process in self._processes) or not self._says.empty(), "one ended early"
            self.look(seconds=1.0)
        return self.seen


@contextmanager
def running(place: Place, *, sessions: int) -> Iterator[Running]:
    """A process of `sessions` sessions for each of the readers, until the end of the block."""
    newest_of(Lake(place.lake_uri))
    context = multiprocessing.get_context("spawn")
    stop, says = context.Event(), context.Queue()
    processes = [
        context.Process(target=_run, args=(place, reader, 1 + sessions * number, sessions, stop, says), daemon=True)
        for number, reader in enumerate(READERS)
    ]
    for process in processes:
        process.start()
    try:
        yield Running(processes, stop, says)
    finally:
        stop.set()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
