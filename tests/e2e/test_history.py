"""A history as of an LSN is the source as of that LSN: random transactions at a real server, of which the rows are
recorded at each commit, through every way to commit, with windows of any length, changes of columns, a table that is
rewritten and read again, and TRUNCATE. A mirror with soft deletes of the same table says when each row went.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from sluice.contract import resyncs
from sluice.tables.policies import Policies
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.options import ApplyOptions
from tests.e2e.mirror import Mirror
from tests.e2e.orders import as_of
from tests.support.extent import FULL, cases, slow

pytestmark = pytest.mark.timeout(1500)
"""The stories of all lake tables are applied in one fixture, by Spark's jobs too."""
WAYS = (DIRECT, DISTRIBUTED, MERGE)
HISTORIES = {f"h_{way}": ({"kind": "history"}, way) for way in (WAYS if FULL else (DIRECT,))}
TRACKED = {"h_tracked": ({"kind": "history", "track": ["v"]}, DIRECT)}
SOFT = {f"s_{way}": ({"kind": "mirror", "deletes": "soft"}, way) for way in (WAYS if FULL else (DIRECT,))}
TABLES = HISTORIES | TRACKED | SOFT
KEYS = 25
Rows = frozenset[tuple[Any, ...]]


@dataclass
class Recorded:
    """The source's rows at each commit, by LSN, with the columns that they had."""

    columns: list[str] = field(default_factory=lambda: ["id", "v", "big"])
    at: dict[int, tuple[tuple[str, ...], Rows]] = field(default_factory=dict)
    read_again: list[tuple[int, int]] = field(default_factory=list)
    """LSNs between which the table was read again: what happened there is not known."""


def _statements(choice: random.Random, recorded: Recorded) -> Iterator[str]:
    """One transaction's, `{t}` is the table."""
    value, key, other = "value" if "value" in recorded.columns else "v", choice.randrange(KEYS), choice.randrange(KEYS)
    for _ in range(choice.randint(1, 5)):
        number = choice.randrange(6)
        yield choice.choices(
            (
                f"INSERT INTO {{t}} (id, {value}) VALUES ({key}, {number}) ON CONFLICT (id) DO UPDATE SET {value} = 5",
                f"INSERT INTO {{t}} SELECT {key}, {number}, repeat('b', 9000) ON CONFLICT (id) DO NOTHING",
                f"UPDATE {{t}} SET {value} = {number} WHERE id IN ({key}, {other})",
                f"UPDATE {{t}} SET big = repeat('c', 9000) || {number} WHERE id = {other}",
                f"UPDATE {{t}} SET {value} = {value} WHERE id % 3 = {number % 3}",
                f"UPDATE {{t}} SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT FROM {{t}} WHERE id = {other})",
                f"DELETE FROM {{t}} WHERE id = {other}",
                f"SAVEPOINT a; DELETE FROM {{t}} WHERE id < {key}; ROLLBACK TO a",
                "TRUNCATE {t}",
            ),
            weights=(4, 4, 5, 2, 1, 4, 3, 1, 0.25),
        )[0]
        key, other = choice.randrange(KEYS), choice.randrange(KEYS)


def _apply(mirror: Mirror, choice: random.Random) -> None:
    mirror.pipeline.run(policies=Policies())
    tables = {f"public.{name}": {"targets": [target], "way": way} for name, (target, way) in TABLES.items()}
    windows = [1, 5_000, 128 << 20] if FULL else [20_000, 128 << 20]
    options: ApplyOptions = replace(
        mirror.options(), tables=tables, max_window_bytes=choice.choice(windows),
        max_memory_bytes=choice.choice([60_000, 256 << 20]),
    )  # fmt: skip
    mirror.apply_by(options)


@pytest.fixture(scope="module")
def recorded(mirror: Mirror) -> Recorded:
    choice, found = random.Random(27), Recorded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resyncs, "REST", 0.0)
        patch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))
        for table in TABLES:
            mirror.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, v int, big text)",
                f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
                f"INSERT INTO {table} SELECT i, i, repeat('a', 9000) || i FROM generate_series(0, 9) i",
            )
        mirror.execute(f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE {', '.join(TABLES)}")
        _apply(mirror, choice)
        _commit(mirror, found, [])
        for phase in range(6 if FULL else 3):
            if phase == 1:
                _commit(
                    mirror, found, ["ALTER TABLE {t} ADD more int DEFAULT 7", "UPDATE {t} SET more = 8 WHERE id < 5"]
                )
                found.columns.append("more")
                _commit(mirror, found, [])
            if phase == 2:
                mirror.execute(*(f"ALTER TABLE {table} RENAME v TO value" for table in TABLES if table != "h_tracked"))
                found.columns[1] = "value"
            for _ in range(12 if FULL else 6):
                statements = list(_statements(choice, found))
                _commit(mirror, found, statements)
            if phase == 2:
                # What the applier had not applied when the table is read again, it does not apply any more.
                _apply(mirror, choice)
                before = max(found.at)
                _commit(mirror, found, ["ALTER TABLE {t} ADD drawn float DEFAULT random()"])
                _apply(mirror, choice)
                _commit(mirror, found, [])
                found.read_again.append((before, max(found.at)))
            if FULL or phase:
                _apply(mirror, choice)
    return found


def _commit(mirror: Mirror, recorded: Recorded, statements: list[str]) -> None:
    """The same of each table; the one that is tracked by its name keeps that."""
    texts = [(statement.replace("{t}", table), table) for statement in statements for table in TABLES]
    mirror.transaction(*(text.replace("value", "v") if table == "h_tracked" else text for text, table in texts))
    names = tuple(recorded.columns)
    found = mirror.database.all(f"SELECT {', '.join(names)} FROM h_direct")
    recorded.at[mirror.database.lsn()] = names, frozenset(found)


def _as_of(rows: list[dict[str, Any]], lsn: int, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in as_of(rows, lsn)]


@pytest.mark.parametrize("table", cases([f"h_{way}" for way in WAYS], quick=HISTORIES))
def test_a_history_as_of_any_commit_is_the_source_as_of_that_commit(
    mirror: Mirror, recorded: Recorded, table: str
) -> None:
    state = mirror.pipeline.table(f"public.{table}")
    assert state.state == "live"
    assert state.resyncs.counts == {"rewrite": 1}, "the table was not read again"
    rows = mirror.rows(table)
    renamed = {"v": "value"}
    for lsn, (names, wanted) in sorted(recorded.at.items()):
        if any(low < lsn < high for low, high in recorded.read_again):
            continue
        found = _as_of(rows, lsn, tuple(renamed.get(name, name) for name in names))
        assert len(found) == len(set(found)) == len(wanted), f"as of {lsn}"
        assert set(found) == set(wanted), f"as of {lsn}"


@slow
def test_every_way_makes_the_same_history(mirror: Mirror, recorded: Recorded) -> None:
    assert recorded.at
    of_versions = [
        sorted(
            (row["id"], row["value"], row["more"], row["_sluice_from_lsn"], row["_sluice_to_lsn"] or 0)
            for row in mirror.rows(table)
        )
        for table in HISTORIES
    ]
    keys_and_values = [[version[:3] for version in versions] for versions in of_versions]
    assert keys_and_values[0] == keys_and_values[1] == keys_and_values[2]


def test_a_history_of_one_column_has_its_values_at_every_commit(mirror: Mirror, recorded: Recorded) -> None:
    rows = mirror.rows("h_tracked")
    for lsn, (names, wanted) in recorded.at.items():
        if not any(low < lsn < high for low, high in recorded.read_again):
            assert names[0] == "id"
            assert sorted(_as_of(rows, lsn, ("id", "v"))) == sorted(row[:2] for row in wanted)
    versions: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        versions.setdefault(row["id"], []).append(row)
    for of_key in versions.values():
        of_key.sort(key=lambda row: row["_sluice_from_lsn"])
        for one, next_ in pairwise(of_key):
            assert one["_sluice_to_lsn"] <= next_["_sluice_from_lsn"]
            if one["_sluice_to_lsn"] == next_["_sluice_from_lsn"]:
                assert one["v"] != next_["v"], "a version without a change of what is tracked"


@pytest.mark.parametrize("table", SOFT)
def test_rows_that_went_stay_as_they_were_and_say_when(mirror: Mirror, recorded: Recorded, table: str) -> None:
    rows = {row["id"]: row for row in mirror.rows(table)}
    history = mirror.rows("h_direct")
    assert set(rows) == {row["id"] for row in history}
    for key, row in rows.items():
        newest = max((one for one in history if one["id"] == key), key=lambda one: one["_sluice_to_lsn"] or (1 << 62))
        assert [row[name] for name in recorded.columns] == [newest[name] for name in recorded.columns]
        assert (row["_sluice_deleted_at"] is None) == newest["_sluice_is_current"]
