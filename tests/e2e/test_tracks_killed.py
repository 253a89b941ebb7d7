"""Tracked columns that are renamed, dropped, added again and too large to be sent unchanged, and deleted rows that are
purged while their keys are inserted again, while `sluice up` is killed: every lake table is what its source was, each
target at its own position.
"""

import hashlib
import random
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.orders import SECONDS, Source, as_of, kill_in_between, pipeline_of, reported
from tests.spark import lake
from tests.support.extent import slow
from tests.support.pipeline import must, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SEED = 31
RETENTION_SECONDS = 20
KEYS = 40
COLUMNS = 4
"""Of the table when it is created."""
TARGETS: tuple[dict[str, Any], ...] = (
    {"kind": "mirror"},
    {"kind": "mirror", "name": "soft", "deletes": "soft", "soft_delete_retention": f"{RETENTION_SECONDS}s"},
    {"kind": "history", "name": "whole"},
    {"kind": "history", "name": "by_v", "track": ["v"], "freshness": "3s"},
    {"kind": "history", "name": "by_big", "track": ["big"], "freshness": "8s"},
    {"kind": "changelog", "name": "changes", "freshness": "2s"},
)
TRACKED = {"whole": None, "by_v": "v", "by_big": "big"}
"""Of each history, what its columns are called that make versions. None: all."""
ROUNDS = (
    ("rename v", "add"),
    ("drop big", "kill", "add big"),
    ("rename big", "rename v", "kill", "storage"),
    ("drop", "resync", "rename v"),
    ("drop big and add it", "kill", "add"),
)
"""What happens between two times at which all is compared. A kill lies between what is before it and after it."""
Values = dict[int, object]
"""Of one row, by the number of the column. Large ones are known by their digest."""


@dataclass
class Wide(Source):
    """Columns by what they are for, and all rows at each commit, by key."""

    called: dict[str, str] = field(default_factory=lambda: {"v": "v", "big": "big", "w": "w"})
    ever: dict[str, set[int]] = field(default_factory=dict)
    """The numbers of the columns that had a name at some time."""
    names: dict[int, str] = field(default_factory=dict)
    rows: dict[int, dict[int, Values]] = field(default_factory=dict)
    added: int = 0

    def create(self, *statements: str) -> None:
        self.database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v int, big text, w text)",
            *statements,
            "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
            "INSERT INTO orders SELECT i, i, repeat('a', 4000) || i, 'w' FROM generate_series(1, 20) i",
        )
        self.commit()

    def change(self, what: str) -> None:
        """A change of columns, in a transaction with rows before it and after it."""
        role = what.split()[1] if " " in what else ""
        if what.startswith("rename"):
            self.added += 1
            new = f"{role}_{self.added}"
            self._altered(f"ALTER TABLE orders RENAME {self.called[role]} TO {new}", role, new)
        elif what == "drop big":
            self._altered(f"ALTER TABLE orders DROP {self.called['big']}", "big", None)
        elif what == "add big":
            self._altered("ALTER TABLE orders ADD big text", "big", "big")
        elif what == "drop big and add it":
            statement = f"ALTER TABLE orders DROP {self.called['big']}; ALTER TABLE orders ADD big text DEFAULT 'none'"
            self._altered(statement, "big", "big")
        elif what == "storage":
            self._altered(f"ALTER TABLE orders ALTER {self.called['big']} SET STORAGE EXTENDED", "", None)
        elif what == "add":
            self.added += 1
            self._altered(f"ALTER TABLE orders ADD more_{self.added} int DEFAULT 7", "more", f"more_{self.added}")
        else:
            self._altered(f"ALTER TABLE orders DROP {self.called['more']}", "more", None)

    def _altered(self, statement: str, role: str, name: str | None) -> None:
        with self.writes:
            before = [self._statement() for _ in range(2)]
            if name:
                self.called[role] = name
            else:
                self.called.pop(role, None)
            self.commit(*before, statement, *(self._statement() for _ in range(2)))

    def _record(self, connection: psycopg.Connection, lsn: int) -> None:
        columns = connection.execute(
            "SELECT attnum, attname FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum"
        ).fetchall()
        self.names = dict(columns)
        for number, name in columns:
            self.ever.setdefault(name, set()).add(number)
        rows = connection.execute("SELECT * FROM orders").fetchall()
        self.rows[lsn] = {row[0]: dict(zip(self.names, map(_known, row), strict=True)) for row in rows}

    def tracked(self, name: str | None) -> set[int]:
        return self.ever[name] if name else set().union(*self.ever.values())

    def around(self, lsn: int) -> tuple[dict[int, Values], dict[int, Values]] | None:
        """The rows before the commit that ended at `lsn`, and after it."""
        known = sorted(self.rows)
        place = bisect_left(known, lsn)
        return (self.rows[known[place - 1]], self.rows[known[place]]) if 0 < place < len(known) else None

    def _statement(self) -> str:
        one, other, number = (self.choice.randrange(KEYS) for _ in range(3))
        v, w = self.called["v"], self.called["w"]
        statements = {
            f"INSERT INTO orders (id, {v}, {w}) VALUES ({one}, {other}, 'n') ON CONFLICT DO NOTHING": 6,
            f"UPDATE orders SET {v} = {v} + 1 WHERE id IN ({one}, {other})": 4,
            f"UPDATE orders SET {w} = {w} || 'x' WHERE id IN ({one}, {other})": 4,
            f"UPDATE orders SET id = {other} WHERE id = {one} AND {other} NOT IN (SELECT id FROM orders)": 4,
            f"DELETE FROM orders WHERE id IN ({one}, {other})": 4,
            "TRUNCATE orders": 0.2,
        }
        if big := self.called.get("big"):
            statements |= {
                f"UPDATE orders SET {big} = repeat('b', 4000) || {number} WHERE id = {one}": 4,
                f"UPDATE orders SET {big} = NULL WHERE id = {other}": 1,
            }
        if more := self.called.get("more"):
            statements[f"UPDATE orders SET {more} = {number} WHERE id = {one}"] = 3
        return self.choice.choices(tuple(statements), weights=tuple(statements.values()))[0]


def _known(value: object) -> object:
    return hashlib.md5(value.encode()).hexdigest() if isinstance(value, str) and len(value) > 1000 else value


@dataclass
class Story:
    pipeline: Pipeline
    source: Wide
    unknown: list[tuple[int, int]] = field(default_factory=list)
    """Positions between the last window and the snapshot of a table that was read again: what was there, nobody knows.
    A table that was truncated and altered while nobody looked is read again by itself.
    """
    reached: int = 0
    generations: dict[str, int] = field(default_factory=dict)

    def reach(self, process: SluiceProcess) -> None:
        """Each target is live and complete through now."""
        lsn = self._complete(process)
        generations = {name: row.generation for name, row in reported(self.pipeline).items()}
        if generations != self.generations:
            # The snapshot is before what is reached now.
            lsn = self._complete(process)
            self.unknown.append((self.reached, lsn))
        self.reached, self.generations = lsn, generations

    def _complete(self, process: SluiceProcess) -> int:
        lsn = self.source.commit()

        def there() -> bool:
            rows = reported(self.pipeline)
            stale = {name: row.why for name, row in rows.items() if row.state == "stale"}
            assert not stale, stale
            return len(rows) == len(TARGETS) and all(
                row.state == "live" and row.complete_through_lsn >= lsn for row in rows.values()
            )

        wait_until(there, what=f"each is complete through {lsn}", processes=(process,), timeout=SECONDS)
        return lsn

    def resync(self, process: SluiceProcess, choice: random.Random) -> SluiceProcess:
        self.reach(process)
        must(self.pipeline, "resync", "public.orders")
        if choice.random() < 0.7:
            process.kill()
            process = self.pipeline.start("up")
        wait_until(
            lambda: all(row.generation > self.generations[name] for name, row in reported(self.pipeline).items()),
            what="each is read again",
            processes=(process,),
            timeout=SECONDS,
        )
        self.reach(process)
        return process

    def known(self, lsn: int) -> bool:
        return not any(low < lsn < high for low, high in self.unknown)

    def table(self, name: str) -> list[dict[str, Any]]:
        return lake.rows_in(self.pipeline.directory / "lake" / "public" / (name or "orders"), metadata=True)

    def values(self, row: dict[str, Any], numbers: set[int] | None = None) -> Values:
        """Of the columns that the source has now, of these `numbers` only."""
        return {
            number: _known(row[name])
            for number, name in self.source.names.items()
            if numbers is None or number in numbers
        }

    def check(self) -> None:
        with self.source.writes:
            self._check_present("")
            self._check_deleted()
            for name, track in TRACKED.items():
                self._check_versions(name, self.source.tracked(track) | {1})
            self._check_changes()

    def _check_present(self, name: str) -> None:
        rows = [row for row in self.table(name) if not row.get("_sluice_deleted_at")]
        found = {row["id"]: self.values(row) for row in rows}
        assert len(found) == len(rows), f"{name} has a row twice"
        assert any(found == self._of_now(at) for at in self.source.rows.values()), f"{name} was never the source"

    def _of_now(self, rows: dict[int, Values], numbers: set[int] | None = None) -> dict[int, Values]:
        """Without the columns that are gone."""
        wanted = self.source.names.keys() & (self.source.names if numbers is None else numbers)
        return {key: {number: row[number] for number in row if number in wanted} for key, row in rows.items()}

    def _check_deleted(self) -> None:
        self._check_present("soft")
        rows = self.table("soft")
        assert len({row["id"] for row in rows}) == len(rows)
        for row in rows:
            if row["_sluice_deleted_at"] and self.known(row["_sluice_lsn"]):
                around = self.source.around(row["_sluice_lsn"])
                assert around is None or row["id"] not in around[1], f"{row['id']} was not deleted then"

    def _check_versions(self, name: str, numbers: set[int]) -> None:
        versions = self.table(name)
        places = [row[one] or 0 for row in versions for one in ("_sluice_from_lsn", "_sluice_to_lsn")]
        first, last = min((one for one in places if one), default=0), max(places, default=0)
        for lsn, wanted in self.source.rows.items():
            if not first <= lsn <= last or not self.known(lsn):
                continue
            seen = as_of(versions, lsn)
            there = {number for row in wanted.values() for number in row}
            found = {row["id"]: self.values(row, numbers & there) for row in seen}
            assert len(found) == len(seen), f"{name} has a row twice as of {lsn}"
            assert found == self._of_now(wanted, numbers), f"{name} as of {lsn}"
        current = {row["id"]: self.values(row) for row in versions if row["_sluice_is_current"]}
        assert any(current == self._of_now(at) for at in self.source.rows.values()), f"{name}: now is not the source"
        self._check_reasons(name, versions, numbers)

    def _check_reasons(self, name: str, versions: list[dict[str, Any]], numbers: set[int]) -> None:
        """A version that follows another one at once differs from it in what is tracked."""
        ended = {(row["id"], row["_sluice_to_lsn"]) for row in versions}
        for row in versions:
            key, lsn = row["id"], row["_sluice_from_lsn"]
            if (key, lsn) in ended and self.known(lsn) and (around := self.source.around(lsn)):
                before, after = (at[key] for at in around)
                assert any(before.get(number) != after.get(number) for number in numbers), f"{name}: {key} at {lsn}"

    def _check_changes(self) -> None:
        """All changes up to a commit make the rows of then: in the columns of the beginning, for what an added column
        means for older rows is no change.
        """
        rows = sorted(
            self.table("changes"), key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"] or 0, row["id"])
        )
        names = {number: name for number, name in self.source.names.items() if number <= COLUMNS}
        first, last = rows[0]["_sluice_lsn"], rows[-1]["_sluice_lsn"]
        state: dict[int, Values] = {}
        at = iter(sorted(lsn for lsn in self.source.rows if first <= lsn <= last))
        lsn = next(at, None)
        for row in [*rows, None]:
            while lsn is not None and (row is None or lsn < row["_sluice_lsn"]):
                wanted = self._of_now(self.source.rows[lsn], set(names))
                assert not self.known(lsn) or state == wanted, f"changes as of {lsn}"
                lsn = next(at, None)
            if row is None or row["_sluice_op"] == "t":
                state = {}
                continue
            old = state.pop((row["_sluice_old"] or row)["id"], {})
            if row["_sluice_op"] != "d":
                assert row["id"] not in state
                unsent = set(row["_sluice_unchanged"] or ())
                sent = {number: _known(row[name]) for number, name in names.items() if number not in unsent}
                state[row["id"]] = {number: sent[number] if number in sent else old[number] for number in names}

    def purged(self) -> bool:
        past = datetime.now(UTC) - timedelta(seconds=RETENTION_SECONDS)
        return all(row["_sluice_deleted_at"] is None or row["_sluice_deleted_at"] > past for row in self.table("soft"))


@slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("identity", "way"), [("DEFAULT", "auto"), ("FULL", "auto"), ("DEFAULT", "distributed"), ("FULL", "merge")]
)
def test_tracked_columns_that_change_between_kills_make_the_versions_that_the_source_had(
    database: Database, tmp_path: Path, identity: str, way: str
) -> None:
    choice = random.Random(SEED + len(identity))
    source = Wide(database, random.Random(choice.random()))
    source.create(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    pipeline = pipeline_of(database, tmp_path / "pipeline", *TARGETS, way=way)
    must(pipeline, "setup", "--ddl-signal", "--apply")
    story = Story(pipeline, source)
    with source.writing():
        process = pipeline.start("up")
        story.reach(process)
        for steps in ROUNDS:
            for step in steps:
                if step == "resync":
                    process = story.resync(process, choice)
                elif step == "kill":
                    process.kill()
                    for _ in range(choice.randrange(3)):
                        kill_in_between(pipeline, choice)
                    process = pipeline.start("up")
                else:
                    source.change(step)
            if choice.random() < 0.5:
                process.kill()
                process = pipeline.start("up")
            story.reach(process)
            story.check()
        wait_until(story.purged, what="what was deleted is purged", processes=(process,), timeout=SECONDS)
    story.reach(process)
    story.check()
    must(pipeline, "verify", timeout=SECONDS)
    process.stop()
