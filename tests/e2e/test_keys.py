"""Rows that other columns identify from some transaction on: the lake goes on without a snapshot, and is equal
after each window and when it is made again from the spool, in whatever way windows are committed.
"""

import random

import pytest

from tests.e2e.mirror import REBUILT, Mirror
from tests.support.extent import FULL, slow
from tests.support.key_stories import MADE, history, play

MERGED = "merged"
ROWS = (
    "UPDATE {t} SET v = 'u' WHERE code % 3 = 0",
    "UPDATE {t} SET code = code - 100 WHERE code % 5 = 0",
    "INSERT INTO {t} VALUES ({n}, -{n}, '2020-01-01', 'new', repeat(md5('{n}'), 300))",
)
ANSWERED = (*ROWS, "DELETE FROM {t} WHERE code % 7 = 0", "UPDATE {t} SET day = 'infinity' WHERE code % 8 = 0")
STORIES = {
    "swapped": (
        "ALTER TABLE {t} ADD wide bigint",
        "UPDATE {t} SET wide = id WHERE id < 20",
        "UPDATE {t} SET v = 'between' WHERE id % 4 = 0",
        "UPDATE {t} SET wide = id + 3000000000 WHERE wide IS NULL",
        (
            "BEGIN; ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, DROP COLUMN id; ALTER TABLE {t} RENAME wide TO id; "
            "ALTER TABLE {t} ADD PRIMARY KEY (id); COMMIT"
        ),
        "UPDATE {t} SET v = 'after' WHERE id % 2 = 0",
        "DELETE FROM {t} WHERE id IN (3, 3000000021)",
        "UPDATE {t} SET id = id + 1000 WHERE id < 9",
        "INSERT INTO {t} (id, code, v) VALUES (3, 300, 'again')",
    ),
    "marked": (
        *ANSWERED,
        "BEGIN; ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (day, code); COMMIT",
        *ANSWERED,
        "UPDATE {t} SET day = '-infinity' WHERE day = 'infinity'",
        "DELETE FROM {t} WHERE day = '-infinity' AND code % 2 = 0",
    ),
    "indexed": (
        *ANSWERED,
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code",
        *ANSWERED,
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
        *ANSWERED,
        "DROP INDEX {t}_code",
        *ANSWERED,
    ),
    "dropped": (
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        "INSERT INTO {t} SELECT id, code + 7000, day, v, big FROM {t} WHERE id < 9",
        "ALTER TABLE {t} REPLICA IDENTITY FULL",
        "UPDATE {t} SET v = 'whole' WHERE id < 5",
        "DELETE FROM {t} WHERE code > 6990",
        "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        "UPDATE {t} SET v = 'still whole', id = id + 50 WHERE id % 3 = 0",
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
        *ANSWERED,
    ),
}


QUICK = ("swapped_a_direct", "dropped_a_direct") if FULL else ("dropped_a_direct",)
EVERY = tuple(f"{name}_{way}" for name in STORIES for way in ("direct", "distributed"))


def publish(mirror: Mirror, *tables: str) -> None:
    """In the publication, which is made with the first ones."""
    name = mirror.database.publication
    made = mirror.database.all("SELECT FROM pg_publication WHERE pubname = %s", name) != []
    mirror.execute(
        f"{'ALTER' if made else 'CREATE'} PUBLICATION {name} {'ADD' if made else 'FOR'} TABLE {', '.join(tables)}"
    )


@pytest.mark.parametrize(
    ("tables", "at_once", "lakes"),
    [
        (QUICK, 99, {REBUILT: "distributed"} if FULL else {}),
        pytest.param(EVERY, 4, {REBUILT: "distributed", MERGED: "merge"}, marks=slow),
    ],
)
def test_every_change_of_the_key_goes_on_without_a_snapshot_in_every_way(
    mirror: Mirror, tables: tuple[str, ...], at_once: int, lakes: dict[str, str]
) -> None:
    ways = {f"public.{table}": table.rpartition("_")[2] for table in tables}
    for table in tables:
        mirror.execute(*(one.format(t=table) for one in MADE))
    publish(mirror, *tables)

    def follow() -> None:
        mirror.pipeline.run(tables=())
        mirror.apply(ways=ways)

    follow()
    for step in range(0, max(map(len, STORIES.values())), at_once):
        for table in tables:
            story = STORIES[table.partition("_")[0]][step : step + at_once]
            mirror.execute(*(one.format(t=table, n=1000 + step + at) for at, one in enumerate(story)))
        follow()
        mirror.assert_equal(*tables)
    states = [mirror.pipeline.table(f"public.{table}") for table in tables]
    assert [(state.state, state.resyncs.counts) for state in states] == [("live", {})] * len(tables)
    applied = mirror.applied()
    assert {name: applied[name].way for name in ways} == ways
    for lake, way in lakes.items():
        mirror.fork(f"{lake}{len(tables)}")
        mirror.apply(f"{lake}{len(tables)}", ways=dict.fromkeys(ways, way))
        mirror.assert_equal(*tables, lake=f"{lake}{len(tables)}")


@slow
def test_a_changelog_goes_on_over_another_key_and_keeps_its_old_rows(mirror: Mirror) -> None:
    mirror.execute("CREATE TABLE grown_log (id int NOT NULL, code int NOT NULL, v text)")
    publish(mirror, "grown_log")
    mirror.pipeline.run(tables=())
    mirror.execute(
        "INSERT INTO grown_log VALUES (1, 10, 'a')",
        "ALTER TABLE grown_log ADD PRIMARY KEY (id)",
        "UPDATE grown_log SET id = 2",
        "ALTER TABLE grown_log DROP CONSTRAINT grown_log_pkey, ADD PRIMARY KEY (id, code)",
        "UPDATE grown_log SET code = 11",
    )
    mirror.follow(tables=())
    assert mirror.pipeline.table("public.grown_log").resyncs.counts == {}
    olds = [(row["_sluice_op"], row["_sluice_old"]) for row in mirror.rows("grown_log")]
    assert sorted(olds, key=str) == [("i", None), ("u", {"id": 1, "code": None}), ("u", {"id": 2, "code": 10})]


def test_a_changelog_whose_old_rows_would_lose_columns_stops_by_name(mirror: Mirror) -> None:
    """The values that it had recorded were gone, and NULL once old rows were sent whole again."""
    mirror.execute(
        "CREATE SCHEMA origins",
        "CREATE TABLE origins.log (id int PRIMARY KEY, v text)",
        "ALTER TABLE origins.log REPLICA IDENTITY FULL",
    )
    publish(mirror, "origins.log")
    mirror.pipeline.run(tables=())
    mirror.execute("INSERT INTO origins.log VALUES (1, 'a')", "UPDATE origins.log SET v = 'b'")
    mirror.follow(tables=())
    mirror.execute("ALTER TABLE origins.log REPLICA IDENTITY DEFAULT", "UPDATE origins.log SET v = 'c'")
    mirror.follow(tables=())
    stopped = mirror.applied()["origins.log"]
    reason = (
        "old rows of origins.log are sent with fewer columns since schema version 2, which its changelog would lose"
    )
    assert (stopped.state, stopped.reason.startswith(reason)) == ("stale", True)
    olds = [row["_sluice_old"] for row in mirror.rows("log", schema="origins")]
    assert sorted(olds, key=str) == [None, {"id": 1, "v": "a"}]


@slow
@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_keys_is_equal(mirror: Mirror, seed: int) -> None:
    chance = random.Random(seed)
    ways = {f"public.s{seed}_{way}": way for way in ("direct", "distributed", "merge")}
    tables = [name.removeprefix("public.") for name in ways]
    for table in tables:
        mirror.execute(*(one.format(t=table) for one in MADE))
    publish(mirror, *tables)
    for _ in range(3):
        for table in tables:
            play(mirror.database, history(chance, table, steps=6))
        mirror.pipeline.run(tables=())
        mirror.apply(ways=ways)
    applied = mirror.applied()
    assert {applied[name].state for name in ways if mirror.pipeline.table(name).state == "live"} <= {"live"}
    mirror.assert_equal(*(table for table in tables if mirror.pipeline.table(f"public.{table}").state == "live"))
