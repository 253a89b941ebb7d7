"""Scenarios: small stories that share one pipeline and one apply, each in a schema of its own, so
that each can fail by itself.

A scenario is publisher SQL and what must be true of the lake afterwards: tables that equal the
source, tables that are stopped by name. Everything in `before` is found by the snapshot, everything in
`after` comes through the stream.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from sluice import lsn
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.support.extent import FULL, cases
from tests.support.source_setup import server_major, since
from tests.support.sources import Database

PAUSE = "-- pause"
"""A line at which the position of the log is noted, see `positions`."""
THEN = "-- then"
"""Between what the snapshot finds and what comes through the stream."""
WORKERS = 4
"""Tables that are merged side by side: they are many and small, and mostly wait for each other's
turn.
"""
_LINE = re.compile(r"(?:(\w+): )?(.+)")
_FACT = re.compile(r"-- \w+: ")


@dataclass(frozen=True)
class Scenario:
    """`name` is also the schema, which statements find without naming it.

    `before` and `after` have a statement on each line; `{publication}` is the pipeline's
    publication. A line may begin with a session's name and a colon: sessions live through the
    script, each in autocommit until it says BEGIN. `publish` are the scenario's entries in a
    publication that lists tables. A table in `equal`, `stopped` or `absent` belongs to the schema
    unless it is qualified. `stopped` tells by table which state it must be in, and a part of the
    reason. `until` is the last major that can send it, `why` what the next one does instead.
    """

    name: str
    before: str
    after: str
    equal: tuple[str, ...] = ()
    stopped: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    since: int = 14
    until: int = 99
    why: str = ""

    def runs_on(self, major: int) -> bool:
        return self.since <= major <= self.until

    def qualified(self, table: str) -> tuple[str, str]:
        schema, _, name = table.rpartition(".")
        return schema or self.name, name


def scenarios(texts: Mapping[str, str], **shared: str) -> tuple[Scenario, ...]:
    """By name, each as one text: lines of facts such as `-- publish: t (id, b); u | equal: t, u | since: 15` or
    `-- stopped: t: stale: what the reason says`, the statements of `before`, `-- then`, and those of `after`. A line
    `-- name` stands for the statements that are given as `shared`.
    """
    return tuple(_scenario(name, text, shared) for name, text in texts.items())


def _scenario(name: str, text: str, shared: Mapping[str, str]) -> Scenario:
    lines = [line.strip() for line in text.splitlines()]
    facts = [fact for line in lines if _FACT.match(line) for fact in line.removeprefix("-- ").split(" | ")]
    stopped = [tuple(fact.split(": ", 3)[1:]) for fact in facts if fact.startswith("stopped: ")]
    said = dict(fact.split(": ", 1) for fact in facts if not fact.startswith("stopped: "))
    script = "\n".join(shared.get(line.removeprefix("-- "), line) for line in lines if not _FACT.match(line))
    before, then, after = script.partition(THEN)
    assert then, f"{name} does not say what happens after the snapshot"
    return Scenario(
        name,
        before,
        after,
        equal=tuple(filter(None, said.pop("equal", "").split(", "))),
        stopped={table: (state, "".join(says)) for table, state, *says in stopped},
        absent=tuple(filter(None, said.pop("absent", "").split(", "))),
        publish=tuple(filter(None, said.pop("publish", "").split("; "))),
        since=int(said.pop("since", 14)),
        until=int(said.pop("until", 99)),
        **said,
    )


@dataclass
class World:
    """Scenarios after they were played; `positions` are the log's at the pauses and at the end."""

    mirror: Mirror
    scenarios: tuple[Scenario, ...]
    positions: list[int] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.mirror.database

    def played(self, name: str) -> Scenario:
        """The scenario; skips the test where the server is too old for it."""
        scenario = next(one for one in self.scenarios if one.name == name)
        since(self.database, scenario.since, name)
        if not scenario.runs_on(server_major(self.database)):
            pytest.skip(f"{name}: {scenario.why}")
        return scenario

    def check(self, name: str, *, lake: str = FOLLOWED) -> None:
        """Everything that the scenario says of its tables."""
        scenario = self.played(name)
        applied = self.mirror.applied(lake)
        for schema, table in map(scenario.qualified, scenario.equal):
            self.mirror.assert_equal(table, schema=schema, lake=lake)
            assert applied[f"{schema}.{table}"].state == "live"
        left_out = self.mirror.complete(lake).left_out
        for table, (state, says) in scenario.stopped.items():
            qualified = ".".join(scenario.qualified(table))
            # Ingest knows of most problems, the applier of those that only a fold shows.
            known = self.mirror.pipeline.table(qualified)
            found = known if known.state != "live" else applied[qualified]
            assert (found.state, left_out.get(qualified)) == (state, state), found.reason
            assert says in found.reason
        known_names = {
            f"{table.schema_name}.{table.table_name}" for table in self.mirror.pipeline.state().tables.values()
        }
        assert not known_names & {".".join(scenario.qualified(table)) for table in scenario.absent}

    def filtered(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the source, sorted by their text."""
        return sorted(self.database.all(query), key=str)

    def lake_rows(self, schema: str, table: str, *columns: str, lake: str = FOLLOWED) -> list[tuple[Any, ...]]:
        """Rows of the lake, sorted by their text; all own columns when none is named."""
        rows = self.mirror.rows(table, schema=schema, lake=lake)
        return sorted(
            (
                tuple(row[column] for column in columns or [name for name in row if not name.startswith("_sluice")])
                for row in rows
            ),
            key=str,
        )


def begin(mirror: Mirror, scenarios: Sequence[Scenario], *, publication: str, **options: Any) -> World:
    """Schemas, tables and first rows; then the snapshot, without an apply.

    `publication` is the rest of CREATE PUBLICATION; `{entries}` in it stands for what the scenarios
    publish.
    """
    major = server_major(mirror.database)
    world = World(mirror, tuple(scenarios))
    here = [one for one in scenarios if one.runs_on(major)]
    for scenario in here:
        mirror.execute(f"CREATE SCHEMA {scenario.name}")
        _run(world, scenario, scenario.before)
    entries = ", ".join(f"TABLE {one.name}.{entry}" for one in here for entry in one.publish)
    mirror.execute(f"CREATE PUBLICATION {mirror.database.publication} {publication.replace('{entries}', entries)}")
    mirror.pipeline.run(tables=(), **options)
    return world


def go_on(world: World, *, at_pause: Callable[[], None] = lambda: None) -> None:
    """What happens after the snapshot, scenario by scenario; nothing reads it meanwhile but what
    `at_pause` does.
    """
    major = server_major(world.database)
    for scenario in world.scenarios:
        if scenario.runs_on(major):
            _run(world, scenario, scenario.after, at_pause)
    world.positions.append(lsn.parse(world.mirror.pipeline.wal_end()))


def play(mirror: Mirror, scenarios: Sequence[Scenario], *, publication: str, **options: Any) -> World:
    """The whole of it: snapshot, changes, ingest, apply."""
    world = begin(mirror, scenarios, publication=publication, **options)
    go_on(world)
    mirror.pipeline.run(tables=(), **options)
    mirror.apply(workers=WORKERS)
    return world


def _run(world: World, scenario: Scenario, script: str, at_pause: Callable[[], None] = lambda: None) -> None:
    script = script.replace("{publication}", world.database.publication)
    with ExitStack() as opened:
        sessions: dict[str, psycopg.Connection] = {}
        for line in filter(None, map(str.strip, script.splitlines())):
            if line == PAUSE:
                world.positions.append(lsn.parse(world.mirror.pipeline.wal_end()))
                at_pause()
                continue
            name, statement = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            if name not in sessions:
                sessions[name] = opened.enter_context(world.database.connect())
                sessions[name].execute(f"SET search_path = {scenario.name}, public".encode())
            sessions[name].execute(statement.encode())


def without(left_out: Collection[str], scenarios: Sequence[Scenario]) -> tuple[Scenario, ...]:
    """The scenarios, and where only the quick ones run those that are not left out."""
    return tuple(one for one in scenarios if FULL or one.name not in left_out)


def names(scenarios: Sequence[Scenario], *, left_out: Collection[str] = ()) -> pytest.MarkDecorator:
    """Parametrises a test by the scenarios' names. Those that are left out are slow."""
    every = [one.name for one in scenarios]
    return pytest.mark.parametrize("name", cases(every, quick=[name for name in every if name not in left_out]))
