"""`python -m tests.soak.large_table`: the snapshot of a large table while every process is killed. See docs/soak.md.

GIGABYTES (20) is the size of the table at the source. Ingest and the applier are killed with -9 three times each, the
server is restarted once. In the end the lake equals the source, and no more than ALLOWED_WORK times the table was read
and written. Then the table is read anew (`sluice resync`), while readers count its rows all the time: every version
must have all of them.
"""

import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import yaml
from deltalake import DeltaTable, QueryBuilder

from tests.support.background import Background
from tests.support.pipeline import complete_through, wait_until
from tests.support.sources import Database, fresh_database
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline, SluiceProcess

GIGABYTES = float(os.environ.get("GIGABYTES", "20"))
ALLOWED_WORK = 1.2
KILLS = (0.2, 0.45, 0.7)
"""Shares of the work of a process after which it is killed."""
RESTART = 0.55
"""Share of the rows read after which the server is restarted."""
LOOK_SECONDS = 0.25
ROW_BYTES = 540
"""Of a row in the table, its header and alignment included. Most of it are hexadecimal digits: files with them are half
as large as the table."""
ROWS = int(GIGABYTES * 1e9 / ROW_BYTES)
NAME = "t"
WITHOUT_WAL = {"wal_level": "minimal", "max_wal_senders": "0"}
"""While the table is written."""
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    **WITHOUT_WAL,
    "checkpoint_timeout": "10min",
    "maintenance_work_mem": "1GB",
    "autovacuum": "off",
    "synchronous_commit": "off",
}
FILL = """CREATE TABLE large AS
    SELECT i AS id, (random() * 1000)::int AS n, (i % 100000)::numeric / 100 AS amount, now() AS at,
           encode(substring(pool FROM 1 + (random() * 4000000)::int FOR 240), 'hex') AS payload
    FROM generate_series(1, {rows}::bigint) i, (SELECT decode('{pool}', 'hex') AS pool OFFSET 0) p"""
_ROWS_READ = re.compile(r"^sluice_snapshot_rows_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Work:
    """What was done for one snapshot: rows read at the source, and bytes written below the lake table's folder,
    by all processes that there were.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self._before = self._present = 0.0
        self._files: dict[str, int] = {}

    @property
    def rows_read(self) -> float:
        return self._before + self._present

    @property
    def bytes_written(self) -> int:
        return sum(self._files.values())

    def look(self) -> None:
        for path in self._folder.glob("**/*.parquet"):
            if path.parent.name != "_delta_log":
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    continue
                self._files[path.name] = max(size, self._files.get(path.name, 0))
        try:
            with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=5) as answer:
                found = _ROWS_READ.search(answer.read().decode())
        except OSError:
            return
        rows = float(found.group(1)) if found else 0.0
        if rows < self._present:
            self._before += self._present
        self._present = rows


class Story:
    """The pipeline of one table, its processes, and what is to be done to them."""

    def __init__(self, server: PostgresServer, database: Database, folder: Path) -> None:
        settings: dict[str, dict[str, Any]] = {
            "source": {"slot": database.slot, "publication": database.publication},
            "apply": {"spark_master": "local[2]", "driver_memory": "2GiB"},
            "telemetry": {"apply_listen": f"127.0.0.1:{free_port()}", "log_format": "json"},
        }
        self.server, self.database = server, database
        self.pipeline = Pipeline(folder, name=NAME, dsn=database.dsn, settings=settings)
        address = yaml.safe_load(self.pipeline.config.read_text())["telemetry"]["listen"]
        self.table = folder / "lake" / "public" / "large"
        self.work = Work(self.table, address)
        self.running = {command: self.pipeline.start(command) for command in ("run", "apply")}

    def replace(self, command: str) -> None:
        process = self.running[command]
        assert process.status is None, f"{command} ended by itself with {process.status}:\n{process.log_tail(40)}"
        process.kill()
        self.running[command] = self.pipeline.start(command)

    def processes(self) -> tuple[SluiceProcess, ...]:
        return tuple(self.running.values())

    def snapshot(self) -> None:
        """Waits until the table is in the lake, with everything killed on the way."""
        deeds: list[tuple[str, Callable[[], float], float, Callable[[], None]]] = [
            *(("kill -9 of ingest", self._read, share, lambda: self.replace("run")) for share in KILLS),
            ("restart of the server", self._read, RESTART, lambda: self.server.restart("immediate")),
            *(("kill -9 of the applier", self._written, share, lambda: self.replace("apply")) for share in KILLS),
        ]
        began = time.monotonic()
        while not self._is_in_lake():
            self.work.look()
            for deed in [one for one in deeds if one[1]() >= one[2]][:1]:
                deeds.remove(deed)
                say(f"{time.monotonic() - began:.0f} s: {deed[0]} at {deed[2]:.0%} of its work")
                deed[3]()
            for process in self.processes():
                assert process.status is None, f"ended with {process.status}:\n{process.log_tail(40)}"
            time.sleep(LOOK_SECONDS)
        self.work.look()
        say(f"{time.monotonic() - began:.0f} s: in the lake")
        for name, *_ in deeds:
            say(f"not done, the lake was quicker: {name}")

    def _read(self) -> float:
        return self.work.rows_read / ROWS

    def _written(self) -> float:
        spooled = sum(path.stat().st_size for path in (self.pipeline.own_spool / "data").glob("**/*.parquet"))
        expected = spooled / self.work.rows_read * ROWS if self.work.rows_read else 0.0
        return self.work.bytes_written / expected if expected else 0.0

    def _is_in_lake(self) -> bool:
        return DeltaTable.is_deltatable(str(self.table)) and bool(DeltaTable(self.table).file_uris())

    def assert_equal(self) -> None:
        """Everything committed by now reaches the lake: counts and sums by another engine, all values by `verify`."""
        position = int(self.database.one("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0])
        self.database.execute("SELECT pg_logical_emit_message(false, 'soak', '')")
        wait_until(
            lambda: complete_through(self.pipeline) >= position,
            what="the lake is complete",
            processes=self.processes(),
            timeout=3600,
        )
        wanted = self.database.one("SELECT count(*), sum(id), sum(n) FROM large")
        assert sums(self.table) == tuple(int(value) for value in wanted)
        done = self.pipeline.run("verify", timeout=3600)
        assert done.returncode == 0, done.stdout + done.stderr


class Writers(Background):
    """Change rows all the time, and never their number, through every loss of the connection."""

    def __init__(self, database: Database) -> None:
        super().__init__(self._write)
        self._database = database
        self.transactions = 0

    def _write(self) -> None:
        choice = random.Random(1)
        while not self.stopped.wait(0.2):
            with contextlib.suppress(psycopg.OperationalError), self._database.connect() as connection:
                while not self.stopped.wait(0.02):
                    with connection.transaction():
                        connection.execute("UPDATE large SET n = n + 1 WHERE id = %s", (choice.randint(1001, ROWS),))
                        again = (choice.randint(1, 1000),)
                        connection.execute("DELETE FROM large WHERE id = %s", again)
                        connection.execute("INSERT INTO large VALUES (%s, 1, 2.50, now(), 'new')", again)
                    self.transactions += 1


class Readers(Background):
    """Counts the rows of the table's newest version again and again, with another engine than the writer's."""

    def __init__(self, table: Path) -> None:
        super().__init__(self._read, patience_seconds=600)
        self._table = table
        self.seen: dict[int, int] = {}

    def _read(self) -> None:
        while not self.stopped.is_set():
            table = DeltaTable(self._table)
            self.seen[table.version()] = sums(self._table, table.version())[0]


def sums(table: Path, version: int | None = None) -> tuple[int, int, int]:
    """Of all rows of a version: their number, and the sums of `id` and of `n`. By a scan: counts ignore vectors."""
    lake = QueryBuilder().register("lake", DeltaTable(table, version=version))
    query = "SELECT count(id) AS rows, coalesce(sum(id), 0) AS ids, coalesce(sum(n), 0) AS ns FROM lake"
    (row,) = pa.table(lake.execute(query).read_all()).to_pylist()
    return int(row["rows"]), int(row["ids"]), int(row["ns"])


def say(text: str) -> None:
    print(text, flush=True)


def fill(server: PostgresServer, database: Database) -> None:
    """The table with its rows, which does not pass the WAL; then a server that can decode."""
    began = time.monotonic()
    pool = random.Random(GIGABYTES).randbytes(4_001_000).hex()
    database.execute(
        FILL.format(rows=ROWS, pool=pool), "ALTER TABLE large ADD PRIMARY KEY (id)", "VACUUM ANALYZE large"
    )
    server.settings.update({"wal_level": "logical", "max_wal_senders": "20"})
    server.restart()
    (size,) = database.one("SELECT pg_size_pretty(pg_table_size('large'))")
    database.execute(f"CREATE PUBLICATION {database.publication} FOR TABLE large")
    say(f"{ROWS:,} rows, {size}, written in {time.monotonic() - began:.0f} s")


def resync(story: Story) -> Readers:
    """Reads the table anew; what readers saw from before until it is live again."""
    before = int(story.pipeline.tables()[0]["generation"])
    with Readers(story.table) as readers:
        done = story.pipeline.run("resync", "public.large")
        assert done.returncode == 0, done.stdout + done.stderr
        new = lambda: _is_new(story, before)  # noqa: E731
        wait_until(new, what="the new rows are live", processes=story.processes(), timeout=7200)
    return readers


def _is_new(story: Story, before: int) -> bool:
    tables = story.pipeline.tables()
    return bool(tables) and tables[0]["state"] == "live" and tables[0]["generation"] > before


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="sluice-large-"))
    with temporary_server(settings=SETTINGS) as server, fresh_database(server) as database:
        fill(server, database)
        story = Story(server, database, folder)
        try:
            with Writers(database) as writers:
                story.snapshot()
                written = story.work.bytes_written
                kept = sum(Path(file).stat().st_size for file in DeltaTable(story.table).file_uris())
                work = {"rows read": story.work.rows_read / ROWS, "bytes written": written / kept}
                say(", ".join(f"{name}: {share:.2f} times the table" for name, share in work.items()))
                readers = resync(story)
                say(f"resync: {len(readers.seen)} versions read, rows {sorted(set(readers.seen.values()))}")
                assert set(readers.seen.values()) == {ROWS}, "a reader saw a part of the table"
            story.assert_equal()
            say(f"equal after {writers.transactions:,} transactions")
        finally:
            for process in story.running.values():
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)
    too_much = [name for name, share in work.items() if share > ALLOWED_WORK]
    for name in too_much:
        say(f"more than {ALLOWED_WORK} times the table: {name}")
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
