"""A folder of pipelines, one for each database, each of which has a table `t` of numbers."""

import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tests.support.pipeline import QUICK_JAVA
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer

_SECONDS = 240.0


class FleetFolder:
    """Configurations below `root`, with a spool for all of them and a lake for each."""

    def __init__(self, root: Path, databases: dict[str, Database]) -> None:
        self.root, self.databases = root, databases
        self.folder = root / "pipelines"
        self.folder.mkdir()

    def configure(self, name: str, **more: object) -> None:
        """`more` replaces whole sections."""
        database = self.databases[name]
        settings: dict[str, Any] = {
            "version": 1,
            "pipeline": name,
            "source": source(database),
            "spool": {"uri": (self.root / "spool").as_uri(), "max_delay": "100ms"},
            "lake": {"uri": (self.root / "lake" / name).as_uri()},
            "apply": {"driver_memory": "1500MiB", "freshness": "500ms", "conf": QUICK_JAVA},
            "stop_timeout": "100s",
            **more,
        }
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))

    def rows(self, name: str) -> list[int]:
        """In the lake, as another engine reads them."""
        try:
            table = DeltaTable((self.root / "lake" / name / "public" / "t").as_uri())
        except TableNotFoundError:
            return []
        found = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
        return [int(value) for value in found.column(0).to_pylist()]

    def is_equal(self, *names: str) -> bool:
        for name in names:
            with self.databases[name].connect() as connection:
                if self.rows(name) != [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id")]:
                    return False
        return True


def source(database: Database) -> dict[str, Any]:
    return {
        "dsn": database.dsn,
        "slot": database.slot,
        "publication": database.publication,
        "tables": ["public.*"],
    }


@contextmanager
def fresh_databases(postgres: PostgresServer, *names: str) -> Iterator[dict[str, Database]]:
    """Each with the table and ten rows."""
    with ExitStack() as stack:
        databases = {name: stack.enter_context(fresh_database(postgres)) for name in names}
        for database in databases.values():
            database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
        yield databases


def until(claim: Callable[[], bool], what: str, *, ended: Callable[[], int | None], tail: Callable[[], str]) -> None:
    """Waits for a claim about a process, which may not listen yet; fails at once when it has `ended`."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            if claim():
                return
        except urllib.error.URLError:
            pass
        assert ended() is None, f"the process ended with {ended()} before: {what}\n{tail()}"
        assert time.monotonic() < deadline, f"not in time: {what}\n{tail()}"
        time.sleep(0.3)
