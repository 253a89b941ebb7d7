"""Two tables between which money moves, and a pipeline of real processes that keeps a lake of them: what readers are
tried on.
"""

import http.client
import json
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from sluice_lake import AsOf, Boundary, Lake, NoBoundary, TableLeftOut
from tests.support.background import beside
from tests.support.pipeline import QUICK_JAVA, new_pipeline
from tests.support.sources import Database
from tools.local.sluice import Pipeline

ACCOUNTS, BALANCE = 50, 1000
TOTAL = 2 * ACCOUNTS * BALANCE
SUM = "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM savings), (SELECT count(*) FROM checking)"
FAST: dict[str, dict[str, Any]] = {
    "apply": {
        "freshness": "0s",
        "poll": "50ms",
        "complete_every": "200ms",
        "driver_memory": "1GiB",
        "maintenance_share": 1.0,
        "conf": QUICK_JAVA,
    },
    "spool": {"max_delay": "50ms"},
}
"""Settings of a pipeline that shows what was written as soon as it can."""


def bank(database: Database, directory: Path, **settings: dict[str, Any]) -> Pipeline:
    """The tables, and a pipeline for them that nobody has started."""
    for table in ("checking", "savings"):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, balance bigint NOT NULL, note text)",
            f"INSERT INTO {table} SELECT id, {BALANCE}, repeat('x', 100) FROM generate_series(1, {ACCOUNTS}) id",
        )
    sections: dict[str, Any] = {name: {**FAST.get(name, {}), **settings.get(name, {})} for name in {*FAST, *settings}}
    return new_pipeline(database, directory, name="bank", **sections)


def lake_of(pipeline: Pipeline) -> Lake:
    """The lake, for a reader who knows its address alone."""
    (pipeline.directory / "lake").mkdir(exist_ok=True)
    return Lake(pipeline.lake_uri)


def newest_of(lake: Lake) -> Boundary | None:
    """The newest boundary, None before the first one is there."""
    try:
        return lake.newest()
    except NoBoundary:
        return None


def endpoint_says_so(port: int, position: str) -> bool:
    """Whether the applier, which may be dead, says that the position can be read."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", f"/wait?lsn={position}&timeout=30")
            answer = connection.getresponse()
            said = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
    assert (answer.status == 200) == said["reached"], said
    return bool(said["reached"])


@dataclass
class Transfers:
    """Moves money at random, in transactions over one or both tables. `last` is a position at which all that was
    written before can be seen, and the number of the newest transfer.
    """

    dsn: str
    pause_seconds: float = 0.1
    seed: int = 1
    count: int = 0

    def going_on(self) -> AbstractContextManager[object]:
        return beside(self._write)

    def _write(self, ended: threading.Event) -> None:
        choice = random.Random(self.seed)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not ended.wait(self.pause_seconds):
                with connection.transaction():
                    for _ in range(choice.randint(1, 4)):
                        amount, ids = choice.randint(1, 99), [choice.randint(1, ACCOUNTS) for _ in range(2)]
                        tables = choice.sample(["checking", "savings"], 2)
                        for table, row, sign in zip(tables, ids, (-1, 1), strict=True):
                            change = f"UPDATE {table} SET balance = balance + %s WHERE id = %s"
                            connection.execute(change.encode(), (sign * amount, row))
                self.count += 1


@dataclass
class Reading:
    """What a reader saw in the boundaries it read: the numbers of those that had both tables."""

    whole: set[int] = field(default_factory=set)
    partial: int = 0
    wrong: list[str] = field(default_factory=list)


def read_once(now: AsOf, seen: Reading) -> None:
    """Reads all of `now` by DuckDB and by Arrow, and notes a sum that is not the one of every moment."""
    boundary = now.boundary
    try:
        tables = [now.arrow(name, columns=["balance"]) for name in ("checking", "savings")]
    except TableLeftOut:
        seen.partial += 1
        return
    by_arrow = sum(sum(table["balance"].to_pylist()) for table in tables)
    (by_duckdb, rows) = now.duckdb().execute(SUM).fetchall()[0]
    if (by_arrow, by_duckdb, rows) != (TOTAL, TOTAL, ACCOUNTS):
        seen.wrong.append(f"boundary {boundary.number} at {boundary}: {by_arrow} and {by_duckdb} in {rows} rows")
    seen.whole.add(boundary.number)


@contextmanager
def reading(lake: Lake, seed: int) -> Iterator[Reading]:
    """A reader who reads the newest boundary, or any other that is offered, until the block ends. Raises what keeps it
    from reading one that is offered.
    """
    seen = Reading()

    def read(ended: threading.Event) -> None:
        choice, newest = random.Random(seed), 0
        while not ended.wait(0.05):
            if newest_of(lake) is None:
                continue
            now = lake.as_of()
            assert now.boundary.number >= newest, "the newest boundary went back"
            newest = now.boundary.number
            read_once(now, seen)
            any_of_them = choice.choice(lake.boundaries())
            read_once(lake.as_of(lsn=any_of_them.lsn), seen)

    with beside(read):
        yield seen
