"""Every change of a table's columns that is followed, in every way in which a transaction can come: the
spool equals the source afterwards, and no table is read again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from sluice import lsn
from sluice.errors import SourceRefused, StoreRefused
from sluice.ingest.encode.builder import BuilderLimits
from sluice.source import ddl_signal
from tests.integration.test_ingest_shapes import RefusesFiles, arrived
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

TABLE = "CREATE TABLE {t} (id int PRIMARY KEY, a text, b int, c text, p numeric(10,2), v varchar(10))"
BEFORE = "INSERT INTO {t} SELECT i, 'a' || i, i, 'c' || i, i + 0.25, 'v' || i FROM generate_series(1, 3) i"
ROWS_BEFORE = (
    "INSERT INTO {t} VALUES (10, 'a10', 10, 'c10', 'NaN', 'v10')",
    "UPDATE {t} SET c = 'changed', b = NULL WHERE id = 2",
)


@dataclass(frozen=True)
class Kind:
    """A change of columns, and the columns of a row that is written after it."""

    ddl: tuple[str, ...]
    row: str
    key: str = "id"

    def insert(self, number: int) -> str:
        return f"INSERT INTO {{t}} ({self.key}) VALUES ({number})"

    def rows(self, first: int) -> tuple[str, ...]:
        names, _, values = self.row.partition(" = ")
        return (
            f"INSERT INTO {{t}} ({self.key}, {names}) VALUES ({first}, {values})",
            f"UPDATE {{t}} SET {self.key} = {self.key} + 1000 WHERE {self.key} = 1",
            f"DELETE FROM {{t}} WHERE {self.key} = 3",
        )


KINDS = {
    "add": Kind(("ADD n int, ADD w text DEFAULT 'w'",), "a, n = 'x', 5"),
    "drop": Kind(("DROP a",), "b, c = 5, 'c'"),
    "drop_last": Kind(("DROP v",), "a, c = 'x', 'c'"),
    "rename": Kind(("RENAME a TO z",), "z, c = 'z', 'c'"),
    "rename_key": Kind(("RENAME id TO number",), "a = 'x'", key="number"),
    "swap": Kind(("RENAME a TO tmp", "RENAME c TO a", "RENAME tmp TO c"), "a, c = 'in third', 'in first'"),
    "again": Kind(("DROP a", "ADD a text"), "a, c = 'again', 'c'"),
    "again_with_default": Kind(("DROP b, ADD b int DEFAULT 7",), "a, b = 'x', 8"),
    "again_otherwise": Kind(("DROP v", "ADD v int"), "v = 8"),
    "moved": Kind(("ADD b2 int", "DROP b", "RENAME b2 TO b"), "b = 9"),
    "came_and_went": Kind(("ADD g text DEFAULT 'g'", "DROP g"), "a = 'x'"),
    "several": Kind(
        ("ADD d date DEFAULT '2020-01-01'", "DROP c", "RENAME a TO c", "ADD a int"), "a, c, d = 1, 'c', NULL"
    ),
    "longer": Kind(("ALTER v TYPE varchar(40)",), "v = 'longer than ten letters'"),
    "text": Kind(("ALTER v TYPE text",), "v = 'longer than ten letters'"),
    "more_digits": Kind(("ALTER p TYPE numeric(20,2)",), "p = 123456789012.25"),
    "generated_unsent": Kind(("ADD g int GENERATED ALWAYS AS (b + 1) STORED", "DROP g"), "b = 4"),
}
SILENTLY_ALIKE = {"again_alike": Kind(("DROP v", "ADD v varchar(10)"), "v = 'new'")}


WAYS = cases(["plain", "streamed"], quick=["streamed" if STREAMS_SOON else "plain"])


class Story:
    """One table for each kind, and what happened to them."""

    def __init__(self, pipeline: IngestPipeline) -> None:
        self.pipeline, self.database = pipeline, pipeline.database
        self.kinds = dict(KINDS)

    def options(self, way: str, **more: Any) -> dict[str, Any]:
        """Of a run to which transactions come this way: "plain", or "streamed" as they are written."""
        if way == "plain":
            return {}
        since(self.database, 16, "streaming of small transactions")
        return {"streaming": "parallel", **more}

    def begin(self, *, way: str = "plain", **options: Any) -> None:
        """Comes to the end of `begin` with all tables carried; from here on the server sends `way`."""
        self.database.execute("CREATE TABLE beat (n int)")
        for name in self.kinds:
            self.do(name, TABLE, BEFORE)
        self.pipeline.run(**options)
        self.send(way)

    def send(self, way: str) -> None:
        self.pipeline.dsn = self.database.dsn + (IMMEDIATELY if way == "streamed" else "")

    def do(self, name: str, *statements: str, connection: psycopg.Connection | None = None) -> None:
        texts = [self.text(name, statement) for statement in statements]
        if connection is None:
            self.database.execute(*texts)
            return
        for text in texts:
            connection.execute(text.encode())

    def text(self, name: str, statement: str) -> str:
        return statement.replace("{t}", name) if "{t}" in statement else f"ALTER TABLE {name} {statement}"

    def assert_followed(self) -> None:
        verdicts = {one.table: one for one in self.pipeline.verdicts()}
        for name in self.kinds:
            verdict = verdicts[f"public.{name}"]
            assert (name, verdict.state, verdict.reason, verdict.differences) == (name, "live", "", ())
            assert self.pipeline.table(f"public.{name}").generation == 1


@pytest.fixture
def story(pipeline: IngestPipeline) -> Story:
    return Story(pipeline)


@slow
def test_every_kind_is_followed_row_by_row(story: Story) -> None:
    story.begin()
    with story.pipeline.running(watch_interval_s=600):
        for name, kind in story.kinds.items():
            story.do(name, *ROWS_BEFORE)
            for number, ddl in enumerate(kind.ddl):
                story.do(name, ddl, kind.insert(100 + number))
            story.do(name, *kind.rows(200))
    story.pipeline.run()
    story.assert_followed()


@pytest.mark.parametrize("signals", cases([False, True], quick=[False]), ids=["alone", "signalled"])
def test_every_kind_is_followed_when_the_catalog_is_far_ahead(story: Story, *, signals: bool) -> None:
    story.database.execute(*(ddl_signal.statements() if signals else ()))
    story.begin()
    for name, kind in story.kinds.items():
        story.do(name, *ROWS_BEFORE, *kind.ddl, *kind.rows(200))
    story.pipeline.run()
    story.assert_followed()


def in_one(story: Story, name: str, kind: Kind, connection: psycopg.Connection, between: Callable[[], None]) -> None:
    story.do(name, *ROWS_BEFORE, connection=connection)
    between()
    for number, ddl in enumerate(kind.ddl):
        story.do(name, ddl, connection=connection)
        if number == 0:
            story.do(name, kind.insert(150), connection=connection)
    story.do(name, *kind.rows(200), connection=connection)
    between()


@slow
@pytest.mark.parametrize("way", ["plain", "streamed"])
def test_every_kind_is_followed_within_one_transaction(story: Story, way: str) -> None:
    options = story.options(way, builder=BuilderLimits(body_bytes=1))
    story.begin(way=way)
    with story.pipeline.running(**options) as running, story.database.connect() as connection:
        for name, kind in story.kinds.items():
            with connection.transaction():
                in_one(story, name, kind, connection, (lambda: None) if way == "plain" else lambda: arrived(running))
    story.pipeline.run(**options)
    story.assert_followed()


@slow
def test_every_kind_is_followed_within_a_prepared_transaction(story: Story) -> None:
    """Ingest is started again before they end."""
    options = story.options("streamed", two_phase=True)
    story.begin(way="streamed", **options)
    with story.pipeline.running(**options) as running, story.database.connect() as connection:
        for name, kind in story.kinds.items():
            connection.execute("BEGIN")
            in_one(story, name, kind, connection, lambda: None)
            connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
        running.wait_until(lambda: len(story.pipeline.state().prepared) == len(story.kinds))
    story.database.execute(*(f"COMMIT PREPARED '{name}'" for name in story.kinds))
    story.pipeline.run(**options)
    story.assert_followed()


def test_a_change_that_a_savepoint_rolls_back_leaves_no_trace(story: Story) -> None:
    options = story.options("streamed")
    story.begin(way="streamed")
    with story.pipeline.running(**options), story.database.connect() as connection:
        for name, kind in story.kinds.items():
            with connection.transaction():
                story.do(name, *ROWS_BEFORE, connection=connection)
                connection.execute("SAVEPOINT s")
                story.do(name, *kind.ddl, *kind.rows(200), connection=connection)
                connection.execute("ROLLBACK TO s")
                story.do(name, "UPDATE {t} SET a = 'kept' WHERE id = 10", connection=connection)
    story.pipeline.run(**options)
    story.assert_followed()
    assert {story.pipeline.table(f"public.{name}").schema_version for name in story.kinds} == {1}


@slow
def test_a_change_that_no_row_follows_arrives_within_the_watch_interval(story: Story) -> None:
    story.kinds |= SILENTLY_ALIKE
    story.begin()
    unchanged = {"came_and_went", "generated_unsent"}

    def followed() -> bool:
        tables = {name: story.pipeline.table(f"public.{name}") for name in story.kinds}
        assert {name: table.reason for name, table in tables.items() if not table.state.is_followed} == {}
        return all(
            table.state == "live" and (table.schema_version > 1 or name in unchanged) for name, table in tables.items()
        )

    with story.pipeline.running(watch_interval_s=0.2) as running:
        for name in story.kinds:
            story.do(name, *ROWS_BEFORE)
        target = lsn.parse(story.pipeline.wal_end())
        running.wait_until(lambda: story.pipeline.state().through_lsn >= target)
        for name, kind in story.kinds.items():
            story.do(name, *kind.ddl)
        running.wait_until(followed)
    story.assert_followed()
    for name, kind in story.kinds.items():
        story.do(name, *kind.rows(200))
    story.pipeline.run()
    story.assert_followed()


PARTED = (
    TABLE + " PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (100)",
    # Its columns have other numbers than those of the root.
    "CREATE TABLE {t}_high (gone int, v varchar(10), p numeric(10,2), c text, b int, a text, id int PRIMARY KEY)",
    "ALTER TABLE {t}_high DROP COLUMN gone",
    "ALTER TABLE {t} ATTACH PARTITION {t}_high FOR VALUES FROM (100) TO (100000)",
)
BY_LEAF = ("drop", "rename", "rename_key", "swap", "again", "moved", "text")
"""None adds a constant default: below a root that is in the leaves only, where it may differ."""


@pytest.mark.parametrize("via_root", cases([True, False], quick=[True]), ids=["root", "leaves"])
def test_columns_of_partitions_are_followed_under_their_root_and_on_their_own(story: Story, via_root: bool) -> None:
    story.kinds = {name: KINDS[name] for name in BY_LEAF}
    for name in story.kinds:
        story.do(name, *PARTED, BEFORE)
    names = ", ".join(story.kinds)
    story.database.execute(
        f"CREATE PUBLICATION {story.database.publication} FOR TABLE {names} "
        f"WITH (publish_via_partition_root = {str(via_root).lower()})"
    )
    story.pipeline.run(tables=())
    for name, kind in story.kinds.items():
        story.do(name, *ROWS_BEFORE, "INSERT INTO {t} SELECT i, 'a' FROM generate_series(301, 303) i", *kind.ddl)
        story.do(name, *kind.rows(200))
        story.do(name, *(row.replace("{t}", "{t}_high") for row in kind.rows(500)[:1]))
    story.pipeline.run(tables=())
    if not via_root:
        story.kinds = {f"{name}_{leaf}": kind for name, kind in story.kinds.items() for leaf in ("low", "high")}
    story.assert_followed()


@slow
@pytest.mark.parametrize("key", ["id int PRIMARY KEY", "id int"], ids=["keyed", "bag"])
def test_columns_are_followed_where_whole_old_rows_are_sent(story: Story, key: str) -> None:
    for name in story.kinds:
        story.do(name, TABLE.replace("id int PRIMARY KEY", key), BEFORE, "ALTER TABLE {t} REPLICA IDENTITY FULL")
    story.pipeline.run()
    for name, kind in story.kinds.items():
        story.do(name, *ROWS_BEFORE, *kind.ddl, *kind.rows(200))
    story.pipeline.run()
    story.assert_followed()


@pytest.mark.parametrize("way", WAYS)
def test_after_a_crash_the_shapes_of_a_transaction_come_again_with_its_rows(story: Story, way: str) -> None:
    """One of the tables has its first shape again in the end."""
    options = story.options(way)
    story.kinds = {name: KINDS[name] for name in ("swap", "several", "came_and_went")}
    story.begin(way=way, **options)
    pipeline = story.pipeline
    with story.database.connect() as connection, connection.transaction():
        for name, kind in story.kinds.items():
            in_one(story, name, kind, connection, lambda: None)
    with pytest.raises(StoreRefused):
        IngestPipeline(story.database, RefusesFiles(pipeline.store), pipeline.dsn).run(**options)
    assert {pipeline.table(f"public.{name}").schema_version for name in story.kinds} == {1}
    assert pipeline.commits() == []
    pipeline.run(**options)
    story.assert_followed()


IN_BETWEEN = {
    "retyped_then_dropped": (
        "ALTER TABLE {t} ALTER v TYPE text",
        "INSERT INTO {t} VALUES (10, 'ten')",
        "ALTER TABLE {t} DROP v",
        "ALTER TABLE {t} ADD a text DEFAULT 'd'",
    ),
    "added_then_retyped": (
        "ALTER TABLE {t} DROP v",
        "ALTER TABLE {t} ADD n varchar(10)",
        "INSERT INTO {t} VALUES (10, 'ten')",
        "ALTER TABLE {t} ALTER n TYPE text",
    ),
    "renamed_then_made_anew": (
        "ALTER TABLE {t} RENAME v TO z",
        "INSERT INTO {t} VALUES (10, 'ten')",
        "ALTER TABLE {t} DROP z",
        "ALTER TABLE {t} ADD z varchar(10) DEFAULT 'd'",
    ),
    "made_anew_around_a_savepoint": (
        "INSERT INTO beat VALUES (1) RETURNING 'the number of the transaction comes before that of {t}'",
        "SAVEPOINT {t}",
        "ALTER TABLE {t} RENAME v TO z",
        "INSERT INTO {t} VALUES (10, 'ten')",
        "RELEASE {t}",
        "ALTER TABLE {t} DROP z",
        "ALTER TABLE {t} ADD z varchar(10) DEFAULT 'd'",
    ),
}
"""Shapes of which the catalog does not say any more what rows in the middle were."""


@pytest.mark.parametrize("way", WAYS)
def test_rows_between_changes_that_leave_no_trace_are_never_taken_for_others(story: Story, way: str) -> None:
    """A table is stale where they are not certain."""
    options = story.options(way)
    story.database.execute("CREATE TABLE beat (n int)")
    for name in IN_BETWEEN:
        story.do(name, "CREATE TABLE {t} (id int PRIMARY KEY, v varchar(10))", "INSERT INTO {t} VALUES (1, 'one')")
    story.pipeline.run(**options)
    story.send(way)
    for name, statements in IN_BETWEEN.items():
        story.database.transact(*(story.text(name, statement) for statement in statements))
    story.pipeline.run(times=2, **options)
    assert story.pipeline.silent_differences() == []


@pytest.mark.parametrize("ddl", cases(["ADD d int", "DROP b"], quick=["DROP b"]))
def test_a_stream_that_the_server_cannot_decode_is_named_with_what_gets_past_it(story: Story, ddl: str) -> None:
    """PostgreSQL fails at some streamed transactions that made a change of columns again after they had undone
    it, each time they are streamed.
    """
    options = story.options("streamed")
    story.do("t", "CREATE TABLE {t} (id int PRIMARY KEY, b text)", "INSERT INTO {t} VALUES (1, 'b')")
    story.pipeline.run(**options)
    story.send("streamed")
    undone = ("SAVEPOINT t", f"ALTER TABLE t {ddl}", "INSERT INTO t (id) VALUES (2)", "ROLLBACK TO t", "RELEASE t")
    within = ("SAVEPOINT t", "INSERT INTO t (id) VALUES (3)", "RELEASE t")
    story.database.transact(*undone, *within, f"ALTER TABLE t {ddl}", "INSERT INTO t (id) VALUES (4)")
    said: SourceRefused | None = None
    try:
        story.pipeline.run(**options)
    except SourceRefused as error:
        said = error
    if said is not None:
        assert "source.streaming: off" in said.hint
        assert any(word in str(said) and word in said.hint for word in ("filenumber", "missing"))
    story.pipeline.run(streaming="off")
    assert story.pipeline.silent_differences() == []
