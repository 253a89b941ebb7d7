"""The table `orders`, for stories in which `sluice up` is killed while the source is written to: its rows at each
commit, a pipeline, and what lake tables of each kind have to be.
"""

import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

from sluice.contract.applied import AppliedTable
from sluice.manifest.newest_record import newest_log
from sluice.store.opening import open_store
from tests.spark import lake
from tests.support.background import beside
from tests.support.pipeline import QUICK_JAVA, new_pipeline, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SECONDS = 400.0
Row = tuple[int, int, str, int]
Rows = set[tuple[int, int]]
Change = dict[str, Any]
_PLACES = ("_sluice_lsn", "_sluice_from_lsn", "_sluice_to_lsn")


@dataclass
class Source:
    """The table `orders`, written to by one thread, and its rows at each commit, by LSN."""

    database: Database
    choice: random.Random
    at: dict[int, Rows] = field(default_factory=dict)
    newest: set[Row] = field(default_factory=set)
    writes: Any = field(default_factory=threading.RLock)
    """Who holds it is the only one that writes."""

    def create(self) -> None:
        self.database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v int, w text, part int DEFAULT 0)",
            "INSERT INTO orders SELECT i, i, 'w' FROM generate_series(1, 20) i",
        )
        self.commit()

    def commit(self, *statements: str) -> int:
        with self.writes, self.database.connect() as connection:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
            lsn = self.database.lsn()
            self._record(connection, lsn)
            return lsn

    def _record(self, connection: psycopg.Connection, lsn: int) -> None:
        found = connection.execute("SELECT id, v, w, part FROM orders").fetchall()
        self.newest = set(found)
        self.at[lsn] = {(one[0], one[1]) for one in found}

    def forget(self, after: int, before: int) -> None:
        """What it was at the commits in between is asked of no lake table."""
        with self.writes:
            self.at = {lsn: rows for lsn, rows in self.at.items() if not after < lsn < before}

    def writing(self) -> AbstractContextManager[object]:
        return beside(self._write)

    def _write(self, ended: threading.Event) -> None:
        while not ended.wait(self.choice.random()):
            with self.writes:
                self.commit(*(self._statement() for _ in range(self.choice.randint(1, 4))))

    def _statement(self) -> str:
        one, other = self.choice.randrange(40), self.choice.randrange(40)
        return self.choice.choices(
            (
                f"INSERT INTO orders VALUES ({one}, {other}, 'n') ON CONFLICT DO NOTHING",
                f"UPDATE orders SET v = v + 1 WHERE id IN ({one}, {other})",
                f"UPDATE orders SET w = w || 'x', part = 1 - part WHERE id = {one}",
                f"UPDATE orders SET id = {other} WHERE id = {one} AND {other} NOT IN (SELECT id FROM orders)",
                f"DELETE FROM orders WHERE id = {one}",
                "TRUNCATE orders",
            ),
            weights=(6, 6, 4, 4, 3, 0.2),
        )[0]


def pipeline_of(database: Database, folder: Path, *targets: Mapping[str, Any], **apply: Any) -> Pipeline:
    """A pipeline `t` in `folder` that has not run yet. `orders` feeds `targets`, and `apply` are further settings."""
    settings = {"poll": "200ms", "driver_memory": "1GiB", "conf": QUICK_JAVA, **apply}
    tables = {"public.orders": {"targets": list(targets)}} if targets else {}
    return new_pipeline(database, folder, spool={"max_delay": "200ms"}, apply=settings, tables=tables)


def configure(pipeline: Pipeline, table: Mapping[str, Any]) -> None:
    """`table` is what the configuration says of `orders` from now on."""
    settings = yaml.safe_load(pipeline.config.read_text())
    settings["tables"] = {"public.orders": dict(table)}
    new = pipeline.config.with_suffix(".new")
    new.write_text(yaml.safe_dump(settings, sort_keys=False))
    new.replace(pipeline.config)


def reported(pipeline: Pipeline) -> dict[str, AppliedTable]:
    """The rows of the applier's newest report, by the names of targets."""
    log = newest_log(open_store(pipeline.spool_uri, prefix="t/", options={})).read()
    return {row.target: row for row in log.tables.values() if row.schema_name == "public"} if log else {}


def reach(
    pipeline: Pipeline, source: Source, process: SluiceProcess, names: Collection[str], *, wrong: Collection[str] = ()
) -> int:
    """Waits until each of these targets is live and complete through now, which is the answer, or stale if it is one of
    the `wrong` ones.
    """
    lsn = source.commit()

    def there() -> bool:
        rows = reported(pipeline)
        return rows.keys() == set(names) and all(
            row.state == "stale" if name in wrong else row.state == "live" and row.complete_through_lsn >= lsn
            for name, row in rows.items()
        )

    try:
        wait_until(there, what="each is complete", processes=(process,), timeout=SECONDS)
    except AssertionError as error:
        rows = {name: (row.state, row.complete_through_lsn, row.why) for name, row in reported(pipeline).items()}
        raise AssertionError(f"{lsn} {set(wrong)} {names} {rows} {error}") from error
    return lsn


def kill_in_between(pipeline: Pipeline, choice: random.Random) -> None:
    """Starts, and kills at some moment."""
    process = pipeline.start("up")
    begun = process.log_start

    def started() -> bool:
        return b"Spark has started" in process.log.read_bytes()[begun:]

    if choice.random() < 0.8:
        wait_until(started, what="Spark has started", processes=(process,), timeout=SECONDS)
    # Some moment is what is wanted, and nothing is waited for.
    threading.Event().wait(choice.random() * 6)
    process.kill()


def check(path: Path, kind: str, at: Mapping[int, Rows]) -> None:
    """The lake table at `path` is what its source was at each commit (`at`, by LSN) that it tells of. `kind` is mirror,
    soft (a mirror with soft deletes), history or changelog.
    """
    name, rows = path.name, lake.rows_in(path, metadata=True)
    last = max((row.get(one) or 0 for row in rows for one in _PLACES), default=0)
    if kind in ("mirror", "soft"):
        found = [(row["id"], row["v"]) for row in rows if not row.get("_sluice_deleted_at")]
        assert len(found) == len(set(found)), name
        assert set(found) in at.values(), f"{name} was never the source"
        if kind == "soft":
            assert len({row["id"] for row in rows}) == len(rows), name
    elif kind == "history":
        first = min((row["_sluice_from_lsn"] for row in rows), default=0)
        for lsn, wanted in at.items():
            seen = [(row["id"], row["v"]) for row in as_of(rows, lsn)]
            if first <= lsn <= last:
                assert (len(seen), set(seen)) == (len(wanted), wanted), f"{name} as of {lsn}"
    else:
        _check_changelog(name, rows, last, at)


def _check_changelog(name: str, rows: list[dict[str, Any]], last: int, at: Mapping[int, Rows]) -> None:
    changes = sorted(rows, key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"]))
    places = [(row["_sluice_lsn"], row["_sluice_ordinal"], row["id"]) for row in changes]
    assert len(set(places)) == len(places), f"{name} has a change twice"
    lsns = [lsn for lsn in at if changes and changes[0]["_sluice_lsn"] <= lsn <= last]
    for lsn, state in states_of(changes, lsns, key=lambda row: row["id"], value=lambda _, row: row["v"]):
        assert set(state.items()) == at[lsn], f"{name} as of {lsn}"


def states_of(
    changes: Iterable[Change], lsns: Iterable[int], *, key: Callable[[Change], Any], value: Callable[[Any, Change], Any]
) -> Iterator[tuple[int, dict[Any, Any]]]:
    """What the rows of a changelog make of an empty table, as of each of these positions. `value` is that of a row, of
    what it was, if it was there, and its change.
    """
    state: dict[Any, Any] = {}
    at = iter(sorted(lsns))
    lsn = next(at, None)
    for change in [*sorted(changes, key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"])), None]:
        while lsn is not None and (change is None or lsn < change["_sluice_lsn"]):
            yield lsn, state
            lsn = next(at, None)
        if change is None or change["_sluice_op"] == "t":
            state.clear()
        elif change["_sluice_op"] in ("i", "u", "d"):
            old = None if change["_sluice_op"] == "i" else state.pop(key(change["_sluice_old"] or change))
            if change["_sluice_op"] != "d":
                assert key(change) not in state
                state[key(change)] = value(old, change)


def as_of(versions: Iterable[Change], lsn: int) -> list[Change]:
    """The rows of a history that were versions then."""
    begun = [row for row in versions if row["_sluice_from_lsn"] <= lsn]
    return [row for row in begun if row["_sluice_to_lsn"] is None or lsn < row["_sluice_to_lsn"]]


def current(path: Path) -> list[Row]:
    """The rows of a lake table, no changelog, that stand for rows of the source now."""
    rows = lake.rows_in(path, metadata=True)
    rows = [row for row in rows if row.get("_sluice_is_current", True) and not row.get("_sluice_deleted_at")]
    return sorted((row["id"], row["v"], row["w"], row["part"]) for row in rows)
