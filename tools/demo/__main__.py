"""`make demo`: a shop in PostgreSQL 18 under load, mirrored into Delta Lake, and then compared row
by row.

Exit status 0 only if every table is equal and complete. Everything it starts is stopped on any way
out; the lake stays, to be looked at.
"""

import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psycopg

from sluice.contract import keys
from sluice.store.opening import open_store
from tools.demo import shop
from tools.demo.freshness import FRESHNESS, Freshness, complete_through
from tools.demo.screen import Screen
from tools.local.binaries import LocalServerError
from tools.local.compare import Comparison, compare_table
from tools.local.jvm import QUICK
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline, SluiceProcess

_CLERKS = 2
_PAUSE_SECONDS = 0.02
_SECONDS_AFTER_LIVE = 30.0
"""The load goes on for at least this long with every table live, or freshness would be that of the
first snapshot.
"""
_LIVE_DEADLINE_SECONDS = 120.0
_COMPLETE_DEADLINE_SECONDS = 150.0
_LOOK_SECONDS = 3.0
_JAVA_OPTIONS = f"-XX:+UseParallelGC {QUICK}"
"""A few minutes of Spark on a small machine: the second compiler would cost more than it gives
back.
"""
_MISMATCH = 4
_HISTORY = "orders_history"
_MASKED = {"customers": {"email": "***"}}
"""What the lake has in place of values that never leave the source."""
_QUESTION = "SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status ORDER BY status"
_OF_HISTORY = (
    "SELECT o.status AS was, n.status AS became, count(*) AS times FROM orders_history o JOIN orders_history n "
    "ON n.id = o.id AND n._sluice_from_lsn = o._sluice_to_lsn GROUP BY ALL ORDER BY times DESC LIMIT 5"
)
"""No mirror knows what an order was before."""
_OF_CUSTOMERS = "SELECT email, count(*) AS customers FROM customers GROUP BY email"


class Demonstration:
    """The parts once they run, and what is known about them."""

    def __init__(self, server: PostgresServer, directory: Path, screen: Screen) -> None:
        self._server = server
        self._screen = screen
        settings: dict[str, dict[str, Any]] = {
            "source": {"tables": ["public.*"]},
            "tables": {
                f"public.{table}": {"columns": {name: {"mask": mask} for name, mask in masks.items()}}
                for table, masks in _MASKED.items()
            }
            | {
                "public.orders": {
                    "targets": [
                        {"kind": "mirror"},
                        {"kind": "history", "name": _HISTORY, "track": ["status"]},
                    ]
                },
            },
            "apply": {"freshness": FRESHNESS, "conf": {"spark.driver.extraJavaOptions": _JAVA_OPTIONS}},
            "telemetry": {"log_format": "console"},
        }
        self.pipeline = Pipeline(directory, name="shop", dsn=server.dsn("sluice", "shop"), settings=settings)
        self._spool = open_store(self.pipeline.spool_uri, prefix=f"{self.pipeline.name}/", options={})
        lake = self.pipeline.directory / "lake"
        self.freshness = Freshness(
            self._spool, [lake / keys.lake_path("public", name) for name in (*shop.TABLES, _HISTORY)]
        )
        self._sluice: SluiceProcess | None = None
        self._stop = threading.Event()
        self._clerks = [
            shop.Clerk(server.dsn("sluice", "shop"), seed=seed, audience=self.freshness) for seed in range(_CLERKS)
        ]
        self._watch = server.superuser("shop")
        self.live_since: float | None = None

    def run(self, *, seconds: float) -> int:
        """The load, until the lake has all of it. The LSN through which all tables are then
        complete.
        """
        self._sluice = self.pipeline.start("up")
        self._screen.say(
            f"started `sluice up -c {os.path.relpath(self.pipeline.config)}`, which logs to "
            f"{os.path.relpath(self._sluice.log)}"
        )
        threads = [
            threading.Thread(target=clerk.work, args=(self._stop,), kwargs={"pause_seconds": _PAUSE_SECONDS})
            for clerk in self._clerks
        ]
        for thread in threads:
            thread.start()
        try:
            self._load(until=time.monotonic() + seconds)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        return self._until_complete()

    def _load(self, *, until: float) -> None:
        moments = list(shop.SPECIAL_MOMENTS)
        deadline = time.monotonic() + _LIVE_DEADLINE_SECONDS
        live_at: float | None = None
        while live_at is None or moments or time.monotonic() < max(until, live_at + _SECONDS_AFTER_LIVE):
            tables = self._look("load")
            if (
                live_at is None
                and len(tables) == len(shop.TABLES) + 1
                and all(table["state"] == "live" for table in tables)
            ):
                live_at, self.live_since = time.monotonic(), time.time()
                self._screen.say("all tables are live")
            if live_at is None and time.monotonic() > deadline:
                raise self._failure(f"the tables were not live within {_LIVE_DEADLINE_SECONDS:.0f} s")
            while live_at is not None and moments and time.monotonic() >= live_at + moments[0][0]:
                _, announced, act = moments.pop(0)
                self._screen.say(announced)
                with psycopg.connect(self._server.dsn("sluice", "shop")) as connection:
                    act(connection)

    def _until_complete(self) -> int:
        """Waits until the lake states that it holds everything committed so far."""
        row = self._watch.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        wanted = int(row[0]) if row else 0
        # Something must be committed behind the position, for a pipeline is complete through
        # transactions, not through silence.
        self._watch.execute("UPDATE products SET stock = stock WHERE sku = (SELECT min(sku) FROM products)")
        self._screen.say("the load has ended; waiting for the lake")
        deadline = time.monotonic() + _COMPLETE_DEADLINE_SECONDS
        while (complete := complete_through(self._spool)) <= wanted:
            self._look("catching up")
            if time.monotonic() > deadline:
                raise self._failure(f"the lake was not complete within {_COMPLETE_DEADLINE_SECONDS:.0f} s")
        return complete

    def _look(self, doing: str) -> list[dict[str, object]]:
        """One look at everything; raises what went wrong in a thread or in Sluice."""
        if self._sluice is not None and self._sluice.status is not None:
            raise self._failure(f"`sluice up` ended with status {self._sluice.status}")
        for clerk in self._clerks:
            if clerk.problem is not None:
                raise clerk.problem
        tables = self.pipeline.tables()
        rows = {}
        for name in shop.TABLES:
            counted = self._watch.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
            rows[name] = counted[0] if counted else 0
        self._screen.progress(
            doing=doing,
            transactions=sum(clerk.transactions for clerk in self._clerks),
            tables=tables,
            source_rows=rows,
            ages=self.freshness.seconds(since=self.live_since or 0.0),
        )
        self._stop.wait(_LOOK_SECONDS) if doing == "load" else time.sleep(_LOOK_SECONDS / 4)
        return tables

    def compare(self) -> list[Comparison]:
        return [
            compare_table(
                self._watch,
                schema="public",
                table=name,
                lake_uri=self.pipeline.lake_uri,
                masked=_MASKED.get(name, {}),
            )
            for name in shop.TABLES
        ]

    def read_own_write(self) -> None:
        """Writes, and waits until the lake can be read with it."""
        self._watch.execute("UPDATE products SET stock = stock + 1 WHERE sku = (SELECT min(sku) FROM products)")
        began = time.monotonic()
        self._answer("wait", "--now", "--timeout", f"{_COMPLETE_DEADLINE_SECONDS:.0f}s")
        self._screen.say(f"the lake has what was written {time.monotonic() - began:.1f} s ago")

    def ask(self) -> None:
        """Questions to all tables as of one transaction, with nothing running."""
        for question in (_QUESTION, _OF_HISTORY, _OF_CUSTOMERS):
            self._answer("query", question)

    def _answer(self, *arguments: str) -> None:
        """What a command says. Raises LocalServerError."""
        words = [os.path.relpath(Path(sys.executable).with_name("sluice")), *arguments]
        config = os.path.relpath(self.pipeline.config)
        self._screen.console.print(f"$ {shlex.join([*words, '-c', config])}", markup=False, soft_wrap=True)
        done = self.pipeline.run(*arguments)
        if done.returncode:
            raise LocalServerError(f"`sluice {arguments[0]}` ended with status {done.returncode}: {done.stderr}")
        self._screen.console.print(f"{done.stdout}{done.stderr}".rstrip(), markup=False, soft_wrap=True)

    def stop(self) -> int:
        """Stops Sluice in order; its exit status."""
        return self._sluice.stop() if self._sluice is not None else 0

    def close(self) -> None:
        self._stop.set()
        self.stop()
        self._watch.close()

    def _failure(self, what: str) -> LocalServerError:
        return LocalServerError(f"{what}; the end of its log:\n{self._sluice.log_tail() if self._sluice else ''}")


@contextlib.contextmanager
def _shop_server() -> Iterator[PostgresServer]:
    with temporary_server() as server:
        with server.superuser() as admin:
            admin.execute("CREATE ROLE sluice LOGIN REPLICATION")
            admin.execute("CREATE DATABASE shop OWNER sluice")
        with server.superuser("shop") as connection:
            connection.execute("SET ROLE sluice")
            connection.execute("CREATE SCHEMA IF NOT EXISTS public AUTHORIZATION sluice")
            shop.open_shop(connection)
        yield server


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long the load lasts, at least.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where lake, spool and log go; emptied.",
)
def main(seconds: float, directory: Path) -> None:
    """Mirrors a PostgreSQL under load into Delta Lake and compares the two, row by row."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        with Screen() as screen:
            sys.exit(_demonstrate(screen, directory, seconds=seconds))
    except KeyboardInterrupt:
        sys.exit(130)
    except (LocalServerError, psycopg.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _demonstrate(screen: Screen, directory: Path, *, seconds: float) -> int:
    screen.say("starting PostgreSQL 18 with a shop in it")
    with _shop_server() as server, contextlib.closing(Demonstration(server, directory, screen)) as demonstration:
        complete_lsn = demonstration.run(seconds=seconds)
        demonstration.read_own_write()
        tables = demonstration.pipeline.tables()
        status = demonstration.stop()
        screen.say(f"stopped Sluice in order, exit status {status}; comparing")
        comparisons = demonstration.compare()
        screen.result(
            comparisons,
            tables=tables,
            complete_lsn=complete_lsn,
            ages=demonstration.freshness.seconds(since=demonstration.live_since or 0.0),
        )
    demonstration.ask()
    return 0 if status == 0 and all(one.is_equal for one in comparisons) else _MISMATCH


if __name__ == "__main__":
    main()
