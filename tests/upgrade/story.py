"""What happens at the source while versions take turns, and what must hold after each turn."""

import json

from sluice.faults import CRASHED
from tests.chaos import writer
from tests.chaos.world import World
from tests.upgrade.releases import NEW, Release

_BLOCKS = "SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i"
"""Twenty blocks, each of them a chunk of the snapshot."""


def stretch(world: World, number: int) -> None:
    """Rows of all kinds, changes of shape, a streamed transaction, and a new table with rows."""
    name, first = f"joined_{number}", number * 300
    world.workload.transact(30)
    world.workload.add_column(f"added_{number}", default="constant" if number % 2 else None)
    world.database.execute(
        f"ALTER TABLE w_pair ADD COLUMN passing_{number} int DEFAULT 3",
        f"CREATE TABLE {name} (id int PRIMARY KEY, body text)",
        f"INSERT INTO {name} {_BLOCKS}",
        f"ALTER PUBLICATION {world.database.publication} ADD TABLE {name}",
        f"INSERT INTO {writer.LARGE} SELECT i, {number}, {writer.BODY} FROM generate_series({first}, {first + 299}) i",
        f"DELETE FROM {writer.LARGE} WHERE id % 7 = {number}",
    )
    world.workload.transact(10)
    if number:
        world.database.execute(
            f"ALTER TABLE joined_{number - 1} RENAME COLUMN body TO renamed",
            f"UPDATE joined_{number - 1} SET renamed = 'new' WHERE id < 5",
        )


def prepare(world: World, number: int) -> None:
    """A transaction that stays prepared until `commit_prepared`. A snapshot would wait for it."""
    with world.database.connect() as connection:
        connection.execute(b"BEGIN")
        connection.execute(f"INSERT INTO {writer.LARGE} VALUES (-10000 - {number}, {number}, 'prepared')".encode())
        connection.execute(f"PREPARE TRANSACTION 'turn-{number}'".encode())


def commit_prepared(world: World, number: int) -> None:
    world.database.execute(f"COMMIT PREPARED 'turn-{number}'")


def dies_in_a_snapshot(world: World, release: Release) -> None:
    """Ingest is killed between two chunks."""
    ended = release.run(world.pipeline, "run", "--until-caught-up", faults="snapshot.read=crash@8")
    assert ended.returncode == CRASHED, ended.stderr[-4000:]


def assert_equal_spool(world: World) -> None:
    """The spool equals the source in every table, and no acknowledgement was early."""
    world.check()
    with world.database.connect() as connection:
        verdicts = world.spool.assert_equal(connection, world.database.publication)
    assert {verdict.state for verdict in verdicts} == {"live"}, verdicts


def assert_same_view(world: World, old: Release) -> None:
    """Both versions find the spool whole, and the same tables in it."""
    answers = []
    for release in (old, NEW):
        release.must(world.pipeline, "spool", "verify", "--content")
        tables = json.loads(release.must(world.pipeline, "tables", "--json"))["tables"]
        answers.append({table["table"]: (table["state"], table["generation"]) for table in tables})
    assert answers[0] == answers[1]
    assert answers[0]


def generation(world: World, name: str) -> int:
    """The life that the lake table of `name` is in."""
    return max(table.generation for table in world.spool.tables.values() if table.name == name)
