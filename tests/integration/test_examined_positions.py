"""No table is stated complete through a position behind a change that only the catalog shows."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice import lsn
from sluice.contract.table_state import State
from sluice.manifest.reader import read_entries
from sluice.manifest.state import PipelineState, TableState, reduce
from sluice.store.opening import open_store
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline

SCHEMA = (
    "CREATE TABLE noise (id int PRIMARY KEY)",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE label (id int PRIMARY KEY, m mood)",
    "INSERT INTO label VALUES (1, 'sad')",
    "CREATE TABLE added (id int PRIMARY KEY)",
    "INSERT INTO added VALUES (1)",
    "CREATE TABLE cast_using (id int PRIMARY KEY, v int)",
    "INSERT INTO cast_using VALUES (1, 1)",
    "CREATE TABLE attached (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE attached_1 PARTITION OF attached FOR VALUES FROM (0) TO (10)",
    "INSERT INTO attached VALUES (1)",
    "CREATE TABLE truncated (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE truncated_1 PARTITION OF truncated FOR VALUES FROM (0) TO (10)",
    "INSERT INTO truncated VALUES (1)",
    "CREATE TABLE x (id int PRIMARY KEY)",
    "CREATE TABLE y (id int PRIMARY KEY)",
    "CREATE PUBLICATION {p} FOR ALL TABLES WITH (publish_via_partition_root = true)",
)


@dataclass(frozen=True)
class Kind:
    """A change of `table`, and whether the manifest's state of it has the change."""

    table: str
    change: str
    known: Callable[[TableState], bool]


def _begun_again(table: TableState) -> bool:
    return table.generation > 1


KINDS = (
    Kind("label", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", _begun_again),
    Kind(
        "added",
        "ALTER TABLE added ADD COLUMN c int DEFAULT 5",
        lambda table: len(table.schemas[table.schema_version].columns) == 2,
    ),
    Kind("cast_using", "ALTER TABLE cast_using ALTER v TYPE text USING v || 'x'", _begun_again),
    Kind(
        "attached",
        "CREATE TABLE attached_2 AS SELECT 11 AS id; ALTER TABLE attached_2 ALTER id SET NOT NULL; "
        "ALTER TABLE attached ATTACH PARTITION attached_2 FOR VALUES FROM (10) TO (20)",
        _begun_again,
    ),
    Kind("truncated", "TRUNCATE truncated_1", _begun_again),
    Kind(
        "x",
        "BEGIN; ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y; COMMIT",
        lambda table: table.table_name == "y",
    ),
)


class World:
    """A pipeline whose other tables are quiet, and what was done to them up to which position."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        settings = {
            "source": {"slot": database.slot, "publication": database.publication},
            "spool": {"max_delay": "200ms"},
        }
        self.pipeline = Pipeline(directory, name="t", dsn=database.dsn, settings=settings)
        self.store = open_store(self.pipeline.spool_uri, prefix="t/", options={})
        self.changed: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self._prefixes = [PipelineState()]
        database.execute(*(statement.format(p=database.publication) for statement in SCHEMA))

    def newest(self) -> PipelineState:
        """The newest state of the manifest. Every one before it was looked at."""
        state = self._prefixes[-1]
        for entry, sha256 in read_entries(self.store, after_seq=state.seq, previous_sha256=state.previous_sha256):
            state = reduce(state, entry, sha256)
            self._check(state)
            self._prefixes.append(state)
        return state

    def _check(self, state: PipelineState) -> None:
        for kind in KINDS:
            behind = self.changed.get(kind.table, state.examined_lsn + 1) <= state.examined_lsn
            if behind:
                table = state.tables[self.ids[kind.table]]
                assert table.state != State.LIVE or kind.known(table), f"entry {state.seq} passes over {kind.table}"

    def is_settled(self) -> bool:
        state = self.newest()
        return (
            len(state.tables) >= len(KINDS)
            and {table.state for table in state.tables.values()} - {State.DETACHED} == {State.LIVE}
            and state.examined_lsn > max(self.changed.values(), default=0)
            and state.examined_lsn > 0
        )

    def change_all(self) -> None:
        """Does everything, one after the other, each with the position where it had committed."""
        state = self.newest()
        self.ids = {table.table_name: table.table_id for table in state.tables.values()}
        with self.database.connect() as connection:
            for kind in KINDS:
                connection.execute(kind.change.encode())
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                self.changed[kind.table] = lsn.parse(row[0])

    @contextmanager
    def noise(self) -> Iterator[None]:
        """Another table changes all the time, so that the position of the manifest moves."""
        done = threading.Event()

        def insert() -> None:
            with self.database.connect() as connection:
                number = 0
                while not done.wait(0.02):
                    number += 1
                    connection.execute("INSERT INTO noise VALUES (%s) ON CONFLICT DO NOTHING", (number,))

        thread = threading.Thread(target=insert)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize("moment", ["running", "frozen", "down"])
def test_nothing_is_complete_beyond_a_change_that_no_look_has_found(
    database: Database, tmp_path: Path, moment: str
) -> None:
    world = World(database, tmp_path)
    process = world.pipeline.start("run")
    try:
        wait_until(world.is_settled, what="all tables are live", processes=(process,), timeout=60)
        if moment == "down":
            process.stop()
        elif moment == "frozen":
            os.kill(process.pid, signal.SIGSTOP)
        with world.noise():
            world.change_all()
            if moment == "down":
                process = world.pipeline.start("run")
            elif moment == "frozen":
                os.kill(process.pid, signal.SIGCONT)
            wait_until(world.is_settled, what="every change was found", processes=(process,), timeout=60)
    finally:
        process.stop()
    assert all(kind.known(world.newest().tables[world.ids[kind.table]]) for kind in KINDS)


def test_an_idle_pipeline_writes_no_entry_for_a_look(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    with world.pipeline.start("run") as process:
        wait_until(world.is_settled, what="all tables are live", processes=(process,), timeout=60)
        wait_until(lambda: world.newest().examined_lsn == world.newest().through_lsn, what="all is examined")
        database.execute("INSERT INTO noise VALUES (1)")
        before = world.newest().seq
        wait_until(
            lambda: world.newest().seq > before and world.newest().examined_lsn == world.newest().through_lsn,
            what="the row is examined",
            processes=(process,),
        )
        assert world.newest().seq <= before + 3
