"""Tables that change their shape on the whole path: added columns in commit order, and what cannot
be followed stops alone, by name. Among the columns are such as no row announces.

Looked at twice: in the lake that followed, and in the one rebuilt from the spool, where rows of
several shapes meet in one window.
"""

import itertools
import random
import threading
from dataclasses import dataclass
from functools import partial

import psycopg
import pytest

from tests.e2e.mirror import FOLLOWED, LAKES, Mirror, transactions, without
from tests.support.background import beside
from tests.support.extent import FULL, cases, slow
from tests.support.ingesting import IMMEDIATELY
from tests.support.source_setup import server_major

DEFAULTS = {
    "boolean": ("true", "false"),
    "smallint": ("-1",),
    "int": ("2147483647",),
    "bigint": ("9007199254740993",),
    "real": ("0.1", "'NaN'", "1e-45"),
    "float8": ("'-0'", "'-Infinity'", "5e-324", "1e308"),
    "numeric(12,2)": ("1.1", "'NaN'"),
    "numeric(38,20)": ("-0.00000000000000000001",),
    "numeric": ("1e50",),
    "date": ("'2020-01-01'", "'0001-01-01'", "'infinity'", "'0044-03-15 BC'"),
    "timestamp": ("'1969-12-31 23:59:59.999999'", "'0001-01-01 00:00:00'", "'-infinity'"),
    "timestamptz": ("'2020-01-01 12:00:00.000001+02'", "'10000-01-01 00:00:00+00'", "now()"),
    "bytea": ("'\\x00ff27'", "''"),
    "text": ("E'it''s \\\\ \"q\" 🦆\\n\\t%'", "''", "'NULL'"),
    "char(5)": ("'x'",),
    "uuid": ("'00000000-0000-0000-0000-000000000001'",),
    "jsonb": ("'{\"a\": 1.10}'",),
    "interval": ("'1 mon -1 day'",),
    "int[]": ("'{}'",),
    "mood": ("'it''s'",),
    "price": ("3.456",),
}
"""Each is a constant for the rows that are there: nothing of it is ever sent."""

TABLES = (
    "CREATE TYPE mood AS ENUM ('sad', 'it''s')",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE TABLE grown (id int PRIMARY KEY, v text)",
    "CREATE TABLE grown_full (id int PRIMARY KEY, v text)",
    "ALTER TABLE grown_full REPLICA IDENTITY FULL",
    "CREATE TABLE grown_bag (v text)",
    "ALTER TABLE grown_bag REPLICA IDENTITY FULL",
    "CREATE TABLE grown_log (v text)",
    "CREATE TABLE defaults (id int PRIMARY KEY)",
    "CREATE TABLE flowing (id int PRIMARY KEY, v int)",
    "CREATE TABLE flowing_bag (id int, v int)",
    "ALTER TABLE flowing_bag REPLICA IDENTITY FULL",
    "CREATE TABLE dropped (id int PRIMARY KEY, v text)",
    "CREATE TABLE listed (id int PRIMARY KEY)",
    "CREATE TABLE became_full (id int PRIMARY KEY, v text)",
    "CREATE TABLE was_full (id int PRIMARY KEY, v text)",
    "ALTER TABLE was_full REPLICA IDENTITY FULL",
    "CREATE TABLE steady (id int PRIMARY KEY, v text)",
    "CREATE TABLE quiet (id int PRIMARY KEY, v int)",
    "CREATE TABLE quiet_bag (v int)",
    "ALTER TABLE quiet_bag REPLICA IDENTITY FULL",
    "CREATE TABLE written (id int PRIMARY KEY)",
)
INITIAL = (
    *(
        f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 5) i"
        for table in ("grown", "grown_full", "dropped", "became_full", "was_full", "steady")
    ),
    "INSERT INTO grown_bag VALUES ('a'), ('a'), ('a'), ('b'), (NULL)",
    "INSERT INTO grown_log VALUES ('a')",
    "INSERT INTO defaults VALUES (1), (2)",
    *(f"INSERT INTO {table} SELECT -i, i FROM generate_series(1, 300) i" for table in ("flowing", "flowing_bag")),
    "INSERT INTO listed VALUES (1)",
    "INSERT INTO quiet SELECT i, i FROM generate_series(1, 3) i",
    "INSERT INTO quiet_bag VALUES (1), (1)",
)
GROWN = ("grown", "grown_full")


def _add(table: str, *columns: str) -> str:
    return f"ALTER TABLE {table} {', '.join(f'ADD COLUMN {column}' for column in columns)}"


def _grow(table: str) -> list[list[str]]:
    return transactions(f"""
        INSERT INTO {table} VALUES (6, 'before');
        UPDATE {table} SET v = 'before' WHERE id = 1;
        UPDATE {table} SET id = 20 WHERE id = 2
        DELETE FROM {table} WHERE id = 3;
        INSERT INTO {table} VALUES (3, 'again')
        INSERT INTO {table} VALUES (7, 'same transaction');
        ALTER TABLE {table} ADD COLUMN note text NOT NULL DEFAULT 'constant';
        INSERT INTO {table} VALUES (8, 'same transaction', 'own');
        UPDATE {table} SET note = 'changed' WHERE id = 4
        ALTER TABLE {table} ALTER COLUMN note SET DEFAULT 'another';
        INSERT INTO {table} (id) VALUES (9)
        UPDATE {table} SET v = 'after' WHERE id = 20;
        UPDATE {table} SET id = 21 WHERE id = 6;
        DELETE FROM {table} WHERE id = 1
        SAVEPOINT s;
        ALTER TABLE {table} ADD COLUMN undone int DEFAULT 3;
        INSERT INTO {table} (id) VALUES (10);
        ROLLBACK TO s;
        INSERT INTO {table} (id) VALUES (11)
        ALTER TABLE {table} ADD COLUMN day date DEFAULT 'infinity', ADD COLUMN n int;
        INSERT INTO {table} (id, day, n) VALUES (12, '2024-01-01', 1)
    """)


def _switch(table: str, *, identity: str) -> list[list[str]]:
    """The same moves before and after the replica identity changes."""
    moves = f"""
        INSERT INTO {table} VALUES (10, 'new');
        UPDATE {table} SET id = 11 WHERE id = 10
        UPDATE {table} SET v = v || '+' WHERE id IN (1, 11);
        UPDATE {table} SET id = 20 WHERE id = 2;
        DELETE FROM {table} WHERE id = 3
        INSERT INTO {table} VALUES (12, 'brief'), (3, 'again');
        DELETE FROM {table} WHERE id = 12;
        UPDATE {table} SET id = 2 WHERE id = 20"""
    between = f"""
        ALTER TABLE {table} REPLICA IDENTITY {identity}
        DELETE FROM {table} WHERE id = 11"""
    return transactions(moves + between + moves)


BAG = transactions("""
    INSERT INTO grown_bag VALUES ('a'), ('c');
    DELETE FROM grown_bag WHERE ctid = (SELECT min(ctid) FROM grown_bag WHERE v = 'a')
    ALTER TABLE grown_bag ADD COLUMN n int DEFAULT 7
    DELETE FROM grown_bag WHERE ctid = (SELECT min(ctid) FROM grown_bag WHERE v = 'a');
    UPDATE grown_bag SET n = 8 WHERE v = 'b'
    UPDATE grown_bag SET v = 'd' WHERE v = 'c';
    INSERT INTO grown_bag VALUES ('a', 7), ('e', NULL);
    DELETE FROM grown_bag WHERE v IS NULL
""")
SWITCHES = [*_switch("became_full", identity="FULL"), *_switch("was_full", identity="DEFAULT")]
OTHERS = [
    ["INSERT INTO grown_log VALUES ('b')", _add("grown_log", "n int DEFAULT 7"), "INSERT INTO grown_log VALUES ('c')"],
    [
        _add(
            "defaults",
            *(
                f"d{number} {declared}"
                for number, declared in enumerate(
                    f"{kind} DEFAULT {value}" for kind, values in DEFAULTS.items() for value in values
                )
            ),
        )
    ],
    ["INSERT INTO defaults VALUES (3)"],
    ["INSERT INTO steady VALUES (6, 'before')", "INSERT INTO dropped VALUES (6, 'before')"],
    ["ALTER TABLE dropped DROP COLUMN v"],
    [_add("listed", "numbers float8 DEFAULT random()"), "INSERT INTO listed VALUES (2)"],
    ["INSERT INTO dropped VALUES (7)", "INSERT INTO steady VALUES (7, 'after')"],
]
UNSEEN = (
    "note text DEFAULT 'it''s ${none}'",
    "day date DEFAULT 'infinity'",
    "plain int",
    "counts bigint[] DEFAULT '{1,NULL,-3}'",
    "words text[] DEFAULT ARRAY['it''s', 'a,b', '', NULL, 'NULL', '\\ \"']",
    "prices numeric(6,2)[] DEFAULT '{1.5}'",
    "shares real[] DEFAULT '{0.1,Infinity,-0}'",
    "days date[] DEFAULT '{2024-01-01,infinity}'",
    "grid int[] DEFAULT '{{1},{2}}'",
)
"""Columns that are added to tables which nobody writes to afterwards."""
QUIET = ("quiet", "quiet_bag", "written")
SILENT = [
    ["INSERT INTO quiet VALUES (4, 4)", "DELETE FROM quiet WHERE id = 1", "INSERT INTO written VALUES (1)"],
    *([_add(table, column)] for table in QUIET for column in UNSEEN),
    ["INSERT INTO written (id, note) VALUES (2, 'given')"],
]
LATER = [
    ["INSERT INTO quiet (id, v) VALUES (9, 9)", "UPDATE quiet SET note = NULL WHERE id = 2"],
    [_add("quiet", "later text DEFAULT 'l'"), "INSERT INTO quiet (id) VALUES (10)"],
    *(
        [f"UPDATE {table} SET v = v || ' later' WHERE id IN (5, 7, 21)", f"DELETE FROM {table} WHERE id = 20"]
        for table in GROWN
    ),
    ["DELETE FROM grown_bag WHERE ctid = (SELECT min(ctid) FROM grown_bag WHERE v = 'a')"],
    [
        "UPDATE defaults SET d0 = false WHERE id = 1",
        "INSERT INTO steady VALUES (8, 'later')",
        "INSERT INTO dropped VALUES (8)",
    ],
]
ARRIVING = (
    "text DEFAULT 'default'",
    "int[] DEFAULT '{1,2}'",
    "text[] DEFAULT ARRAY['a,b', NULL, '']",
    "numeric(6,2)[] DEFAULT '{1.5,NULL}'",
    "date[] DEFAULT '{2024-01-01,infinity}'",
    "int[] DEFAULT '{}'",
)
FLOWING = ("flowing", "flowing_bag")
SWITCHED = ("became_full", "was_full")
LEFT_OUT = () if FULL else ("grown_full", "was_full", "quiet_bag", *FLOWING)
"""Their kinds are those of others; what flows takes long."""
EVERY = (*GROWN, *SWITCHED, *QUIET, *FLOWING, "grown_bag", "defaults", "steady", "dropped")
EQUAL = tuple(table for table in EVERY if table not in LEFT_OUT)


@dataclass(frozen=True)
class Story:
    mirror: Mirror
    last_lsn: int


def _write(connection: psycopg.Connection, table: str, numbers: "itertools.count[int]", seed: random.Random) -> None:
    """Rows that come, change and go, some of them in a savepoint that is undone."""
    for _ in range(5):
        connection.execute(f"INSERT INTO {table} (id, v) VALUES (%s, 0)".encode(), (next(numbers),))
        connection.execute(f"UPDATE {table} SET v = v + 1 WHERE id %% 7 = %s".encode(), (seed.randrange(7),))
        connection.execute(f"DELETE FROM {table} WHERE id %% 97 = %s".encode(), (seed.randrange(97),))
        if seed.random() < 0.3:
            with connection.transaction(force_rollback=True):
                connection.execute(f"UPDATE {table} SET v = -1".encode())


def _flow(mirror: Mirror) -> None:
    """Columns come in transactions that write before and after them, and others that are undone, while others write.
    Each transaction is streamed at once, where the server can.
    """
    numbers = itertools.count(1)

    def others(table: str, ended: threading.Event) -> None:
        with mirror.database.connect() as connection:
            while not ended.wait(0.05):
                with connection.transaction():
                    _write(connection, table, numbers, random.Random(table))

    mirror.pipeline.dsn = mirror.database.dsn + (IMMEDIATELY if server_major(mirror.database) >= 16 else "")
    works = [partial(others, table) for table in FLOWING]
    with mirror.pipeline.running(watch_interval_s=0.1, stop_s=100.0), beside(*works):
        for (number, column), table in itertools.product(enumerate(ARRIVING), FLOWING):
            seed = random.Random(column)
            with mirror.database.connect() as connection, connection.transaction():
                connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE".encode())
                _write(connection, table, numbers, seed)
                with connection.transaction(force_rollback=True):
                    connection.execute(_add(table, "undone int[] DEFAULT '{7}'").encode())
                    _write(connection, table, numbers, seed)
                connection.execute(_add(table, f"c{number} {column}").encode())
                _write(connection, table, numbers, seed)
    mirror.pipeline.dsn = ""


@pytest.fixture(scope="module")
def story(mirror: Mirror) -> Story:
    mirror.execute(*without(LEFT_OUT, *TABLES, *INITIAL))
    mirror.follow()
    for transaction in (*_grow("grown"), *_grow("grown_full"), *SWITCHES, *BAG, *OTHERS, *SILENT):
        mirror.transaction(*without(LEFT_OUT, *transaction))
    mirror.follow()
    mirror.assert_equal(*EQUAL)
    if FULL:
        _flow(mirror)
    for transaction in LATER:
        mirror.transaction(*without(LEFT_OUT, *transaction))
    mirror.follow()
    if FULL:
        mirror.rebuild()
    return Story(mirror, mirror.pipeline.commits()[-1])


pytestmark = pytest.mark.parametrize("lake", cases(LAKES, quick=[FOLLOWED]))


@pytest.mark.parametrize("table", cases(GROWN, quick=EQUAL))
def test_an_added_column_has_its_constant_in_rows_that_were_there_and_its_own_value_in_others(
    story: Story, table: str, lake: str
) -> None:
    story.mirror.assert_equal(table, lake=lake)
    notes = dict(story.mirror.values(table, "id", "note", lake=lake))
    assert notes == {
        3: "constant",
        4: "changed",
        5: "constant",
        7: "constant",
        8: "own",
        9: "another",
        11: "another",
        12: "another",
        21: "constant",
    }
    marks = {row["id"]: (row["_sluice_special"] or {}).get("day") for row in story.mirror.rows(table, lake=lake)}
    assert marks == {**dict.fromkeys(notes, "infinity"), 12: None}


def test_a_constant_of_every_type_is_in_the_rows_that_were_there(story: Story, lake: str) -> None:
    story.mirror.assert_equal("defaults", lake=lake)
    assert story.mirror.values("defaults", "id", lake=lake) == [(1,), (2,), (3,)]


@pytest.mark.parametrize("table", cases(QUIET, quick=EQUAL))
def test_a_column_that_no_row_announces_is_in_the_lake_with_its_default(story: Story, table: str, lake: str) -> None:
    """One of the tables is written to later, and grows again."""
    assert story.mirror.pipeline.table(f"public.{table}").state == "live"
    applied = story.mirror.applied(lake)[f"public.{table}"]
    assert applied.state == "live", applied.reason
    story.mirror.assert_equal(table, lake=lake)


@pytest.mark.parametrize("table", cases(FLOWING, quick=EQUAL))
def test_columns_added_in_streamed_transactions_while_rows_flow_arrive_in_commit_order_with_their_defaults(
    story: Story, table: str, lake: str
) -> None:
    assert story.mirror.pipeline.table(f"public.{table}").state == "live"
    story.mirror.assert_equal(table, lake=lake)
    assert len(story.mirror.pipeline.table(f"public.{table}").schemas) > len(ARRIVING)


def test_a_changelog_keeps_older_changes_as_they_were(story: Story, lake: str) -> None:
    """Its rows are what was sent, and nothing was sent for the older ones."""
    rows = sorted(
        story.mirror.rows("grown_log", lake=lake), key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"])
    )
    assert [row["v"] for row in rows] == ["a", "b", "c"]
    assert [row["n"] for row in rows] == [None, None, 7]


@pytest.mark.parametrize("table", cases([*SWITCHED, "grown_bag", "dropped", "steady"], quick=EQUAL))
def test_whatever_shape_a_table_comes_to_it_equals_the_source(story: Story, table: str, lake: str) -> None:
    """Rows without a key and rows that are named by another identity than before among them."""
    story.mirror.assert_equal(table, lake=lake)


def test_a_table_that_cannot_be_followed_is_stale_and_the_others_are_complete(story: Story, lake: str) -> None:
    stopped = story.mirror.applied(lake)["public.listed"]
    assert stopped.state == "stale"
    assert "numbers" in stopped.reason
    complete = story.mirror.complete(lake)
    assert complete.left_out == {"public.listed": "stale"}
    assert complete.versions.keys() == {f"public.{other}" for other in (*EQUAL, "grown_log")}
    assert complete.lsn >= story.last_lsn


def test_a_stale_table_keeps_what_it_had_before_the_change(story: Story, lake: str) -> None:
    """Only where the lake followed: it does not get there by a replay, which sees at once that the
    table is stale.
    """
    if lake == FOLLOWED:
        assert story.mirror.values("listed", "id") == [(1,)]


@slow
def test_replaying_everything_commits_nothing(story: Story, lake: str) -> None:
    # A window of columns alone, the last one of a mirror of whole rows, is committed again when the notes are lost.
    mirror, tables = story.mirror, [table for table in EQUAL if table != "quiet_bag"]
    before = {table: mirror.delta(table, lake=lake).version() for table in tables}
    mirror.apply(lake)
    mirror.forget_notes(lake)
    mirror.apply(lake)
    assert {table: mirror.delta(table, lake=lake).version() for table in tables} == before
    assert mirror.complete(lake).left_out == {"public.listed": "stale"}
    mirror.assert_equal(*EQUAL, lake=lake)
