"""Tables that were dropped leave the manifest's state, and nothing that may still need them is hurt."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.entries import Progress
from sluice.contract.reasons import unpublished
from sluice.contract.table_state import State
from sluice.errors import StoreUnavailable
from sluice.health.reporter import Reporter
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.ingest.tables.forgetting import LOOK_SECONDS, Forgetting
from sluice.manifest import checkpoint, pruning
from sluice.manifest.compaction import Compactor
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.reader import load_state
from sluice.manifest.state import to_json
from sluice.source.catalog import Catalog
from sluice.source.sessions import open_query
from sluice.store.memory import MemoryStore
from sluice.tables import events
from tests.conformance.spools import LATER, World
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.manifests import put
from tests.support.recorded import rows
from tests.support.source_setup import options_of
from tests.support.sources import Database

TABLES = 300
LEAST = 700
"""Bytes of a checkpoint that a forgotten table may take."""


class Dropping(World):
    """A spool of tables by numbers that no table of the server has."""

    def __init__(self, database: Database) -> None:
        super().__init__(MemoryStore(uuid.uuid4().hex))
        self.catalog = Catalog(open_query(options_of(database)))
        self.begin()

    def begin(self) -> None:
        """As a process that starts."""
        self.seconds = 0.0
        self.tables = FollowedTables(
            OrderedLog(self.log, threaded=False), lambda _: None, (), wal_end=lambda: 0, await_seen=lambda _: None
        )
        self.forgetting = Forgetting(self.store, self.tables, lambda: self.state, clock=lambda: self.seconds)

    def drop(self, table_id: str) -> None:
        self.tables.decide(events.TableGone(int(table_id), unpublished("sluice")))

    def turn(self, *, pass_by: bool = True) -> set[str]:
        """The tables that are forgotten after a look. With `pass_by` there is another one before, and the
        stream passes it: a server writes WAL of its own accord.
        """
        if pass_by:
            self.look()
            self.stream_to(self.catalog.wal_end())
        self.look()
        return {table_id for table_id, table in self.state.tables.items() if table.is_forgotten}

    def look(self) -> None:
        self.seconds += LOOK_SECONDS
        self.forgetting.turn(self.catalog)

    def stream_to(self, lsn: int) -> None:
        put(self.log, Progress(), through_lsn=max(lsn, self.state.through_lsn + 1))

    def prune(self) -> None:
        """All that there is is applied, and old."""
        self.applied()
        self.collect(now=self.time + timedelta(days=1))


@pytest.fixture
def world(database: Database) -> Iterator[Dropping]:
    made = Dropping(database)
    with closing(made.catalog):
        yield made


@slow
def test_hundreds_of_dropped_tables_leave_little_in_the_state(world: Dropping) -> None:
    ids = [str(900_000 + number) for number in range(TABLES)]
    world.join("7")
    without = len(json.dumps(to_json(world.state)))
    for table_id in ids:
        world.join(table_id)
        world.drop(table_id)
    full = len(json.dumps(to_json(world.state)))
    world.prune()
    while len(world.turn()) < TABLES:
        pass
    left = len(json.dumps(to_json(world.state)))
    assert (left - without) / TABLES < LEAST < (full - without) / TABLES
    world.prune()
    world.applied()
    archiving = Compactor(world.store)
    while archiving.step(world.state.seq):
        pass
    world.prune()
    checkpoint.write(world.store, world.state)
    assert load_state(world.store) == world.state
    assert world.state.tables["7"].state == State.LIVE


def test_a_table_is_not_forgotten_before_nothing_can_refer_to_it(world: Dropping, database: Database) -> None:
    world.join("900001")
    world.prune()
    world.drop("900001")
    assert world.turn() == set(), "pruning has not passed the entry by which it left"
    world.prune()
    world.begin()
    world.stream_to(world.catalog.wal_end())
    database.execute("SELECT pg_logical_emit_message(false, 'x', 'y')")
    assert world.turn(pass_by=False) == set(), "rows of it may be on their way"
    assert world.turn(pass_by=False) == set()
    assert world.turn() == {"900001"}


def test_a_table_that_the_source_has_or_a_prepared_transaction_needs_is_not_forgotten(
    world: Dropping, database: Database
) -> None:
    database.execute("CREATE TABLE stays (id int PRIMARY KEY)")
    row = database.one("SELECT 'stays'::regclass::oid::int8")
    there = str(row[0])
    world.join("7")
    world.join(there)
    waiting = world.prepare("held")
    for table_id in ("7", there):
        world.drop(table_id)
    for _ in range(3):
        world.prune()
        assert world.turn() == set()
    world.end(waiting, "rolled_back")
    world.prune()
    assert world.turn() == {"7"}
    database.execute("DROP TABLE stays")
    world.turn()
    world.prune()
    assert world.turn() == {"7", there}


def test_killed_in_between_the_next_process_ends_the_work(world: Dropping) -> None:
    for number in range(5):
        world.join(f"90000{number}")
        world.drop(f"90000{number}")
    world.prune()
    faults.arm("forget.before=raise:StoreUnavailable@3")
    with pytest.raises(StoreUnavailable):
        world.turn()
    faults.arm("")
    assert len([table for table in world.state.tables.values() if table.is_forgotten]) == 2
    world.open()
    world.begin()
    assert len(world.turn()) == 5


def test_a_horizon_that_cannot_be_read_stops_nothing(world: Dropping) -> None:
    world.join("900001")
    world.drop("900001")
    world.prune()
    world.store.put(keys.horizon(world.state.seq), b"no horizon")
    assert world.turn() == set()


def test_a_look_that_sees_a_forgotten_table_gone_again_says_nothing_more(world: Dropping) -> None:
    world.join("900001")
    world.drop("900001")
    world.prune()
    assert world.turn() == {"900001"}
    before = world.state.seq
    world.drop("900001")
    assert world.state.seq == before


def test_what_is_forgotten_is_in_no_report(world: Dropping) -> None:
    world.join("7")
    world.join("900001")
    world.drop("900001")
    reporter = Reporter(pipeline="test", store=world.store, lake_uri="file:///nowhere", source=None)
    assert [table.table for table in reporter.take().tables] == ["t7", "t900001"]
    world.prune()
    world.turn()
    assert [table.table for table in reporter.take().tables] == ["t7"]


def test_a_running_ingest_forgets_a_table_that_was_dropped_and_carries_its_successor(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.ingest.tables.forgetting.LOOK_SECONDS", 0.0)
    database = pipeline.database
    create = "CREATE TABLE gone (id int PRIMARY KEY, v int)"
    pipeline.run(create, "CREATE PUBLICATION {p} FOR ALL TABLES", tables=())
    first = pipeline.table("public.gone")
    database.execute("INSERT INTO gone VALUES (1, 1)", "DROP TABLE gone", create, "INSERT INTO gone VALUES (2, 2)")
    pipeline.run(tables=())
    state = pipeline.state()
    done = {key: one for key, one in rows(state).items() if state.tables[key].state == State.LIVE}
    at = "2026-01-01T00:00:00+00:00"
    pipeline.store.create(keys.apply_log(1), AppliedLog(1, "a", at, done).encode())
    pipeline.store.create(keys.apply_complete(1), Complete(1, 1, state.seq, at, {}).encode())
    pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0, now=lambda: LATER))
    with pipeline.running(tables=(), watch_interval_s=0.1) as running:

        def is_forgotten() -> bool:
            database.execute("INSERT INTO gone SELECT max(id) + 1, 0 FROM gone")
            return pipeline.state().tables[first.table_id].is_forgotten

        running.wait_until(is_forgotten)
    (alive,) = [table for table in pipeline.state().tables.values() if not table.is_forgotten]
    assert (alive.state, alive.path) == (State.LIVE, first.path)
