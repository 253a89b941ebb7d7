"""Statements of all kinds change tables again and again while others write: in the end every table
equals its source, and each snapshot that this took has a stated cause.

`make chaos` goes on for DDL_SECONDS (600) at 40 statements a minute; SEED repeats a run.
"""

import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.contract import resyncs
from sluice.contract.table_state import State
from sluice.tables.policies import Policies, TablePolicy
from tests.support.background import Background
from tests.support.extent import FULL, slow
from tests.support.ingesting import IngestPipeline
from tests.support.oracle import Spool

SECONDS = float(os.environ.get("DDL_SECONDS", "600" if FULL else "8"))
EVERY = 1.5 if FULL else 0.25
KINDS = (
    "ALTER TABLE {t} ADD COLUMN {c} int DEFAULT 7",
    "ALTER TABLE {t} ADD COLUMN {c} text",
    "ALTER TABLE {t} ADD COLUMN {c} float8 DEFAULT random()",
    "ALTER TABLE {t} DROP COLUMN {o}",
    "ALTER TABLE {t} RENAME COLUMN {o} TO {c}",
    "ALTER TABLE {t} ALTER COLUMN {o} TYPE text USING {o}::text || '!'",
    "ALTER TABLE {t} ALTER COLUMN {o} TYPE bigint",
    "ALTER TABLE {t} ADD COLUMN {c} real DEFAULT 0.1",
    "ALTER TABLE {t} ALTER COLUMN {o} TYPE float8",
    "BEGIN; ALTER TABLE {t} DROP COLUMN {o}; ALTER TABLE {t} ADD COLUMN {o} int DEFAULT 1; COMMIT",
    "BEGIN; SAVEPOINT s; ALTER TABLE {t} ADD COLUMN {c} int; INSERT INTO {t} (id) VALUES ({n}); ROLLBACK TO s; COMMIT",
    "ALTER TABLE {t} RENAME TO {f}",
    "BEGIN; INSERT INTO {t} (id) VALUES ({n}); ALTER TABLE {t} RENAME TO {f}; COMMIT",
    "ALTER TABLE {t} SET SCHEMA {s}",
    "BEGIN; ALTER TABLE {t} RENAME TO x; ALTER TABLE {u} RENAME TO {tn}; ALTER TABLE x RENAME TO {un}; COMMIT",
    "BEGIN; DROP TABLE {t}; CREATE TABLE {t} (id bigint PRIMARY KEY, w text); INSERT INTO {t} VALUES ({n}); COMMIT",
    "ALTER TABLE {t} DROP CONSTRAINT {k}",
    "ALTER TABLE {t} ADD PRIMARY KEY (id)",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
    "TRUNCATE {t}",
    "VACUUM FULL {t}",
    "CREATE TABLE {f} (id bigint PRIMARY KEY, v text)",
    "DROP TABLE {t}",
)
"""Many fail on the table that they meet, which is as well."""


class Changer:
    """One session that changes tables, or their rows. `failed` counts statements that the server refused."""

    def __init__(self, pipeline: IngestPipeline, seed: int) -> None:
        self._connection = pipeline.database.connect()
        self._connection.execute("SET lock_timeout = '2s'; SET search_path = public, other")
        self._choice = random.Random(seed)
        self.done = self.failed = 0

    def ddl(self) -> None:
        tables = self._tables()
        (schema, name, key, columns), (other_schema, other, _, _) = self._choice.choices(tables, k=2)
        kinds = KINDS if len(tables) > 3 else KINDS[:-1]
        numbers = iter(self._choice.sample(range(10**6), 4))
        statement = self._choice.choice(kinds).format(
            t=f"{schema}.{name}",
            tn=name,
            u=f"{other_schema}.{other}",
            un=other,
            k=key or "none",
            o=self._choice.choice(columns) if columns else "none",
            c=f"c{next(numbers) % 20}",
            f=f"t{next(numbers) % 12}",
            s=self._choice.choice(("public", "other")),
            n=next(numbers),
        )
        self._run(statement)

    def rows(self) -> None:
        schema, name, _, columns = self._choice.choice(self._tables())
        ids = self._choice.sample(range(10**6), 3)
        column = self._choice.choice(columns) if columns else "id"
        statements = [
            f"INSERT INTO {schema}.{name} (id) SELECT i FROM generate_series({ids[0]}, {ids[0] + 20}) i",
            f"UPDATE {schema}.{name} SET {column} = {column} WHERE id % 7 = {ids[1] % 7}",
            f"DELETE FROM {schema}.{name} WHERE id % 11 = {ids[2] % 11}",
        ]
        self._run("; ".join(["BEGIN", *self._choice.sample(statements, 2), "COMMIT"]))

    def close(self) -> None:
        self._connection.close()

    def _run(self, statement: str) -> None:
        try:
            self._connection.execute(statement.encode())
            self.done += 1
        except psycopg.Error:
            self._connection.execute("ROLLBACK")
            self.failed += 1

    def _tables(self) -> list[tuple[str, str, str | None, list[str]]]:
        """Schema, name, primary key and the columns beside the first of each table."""
        return self._connection.execute(
            "SELECT nspname, relname, (SELECT conname FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p'), "
            "ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 1 AND NOT attisdropped) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE relkind = 'r' AND nspname IN ('public', 'other') ORDER BY c.oid"
        ).fetchall()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resyncs, "REST", 0.0)
    monkeypatch.setattr(resyncs, "PAUSES_SECONDS", (0.0, 0.1, 1.0))


@slow
@pytest.mark.timeout(int(SECONDS * 2 + 300))
def test_tables_that_change_without_end_are_equal_in_the_end(
    pipeline: IngestPipeline, tmp_path: Path, seed: int
) -> None:
    pipeline.database.execute(
        "CREATE SCHEMA other",
        *(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, v text, n int)" for number in range(6)),
        *(f"INSERT INTO t{number} SELECT i, 'v', i FROM generate_series(1, 200) i" for number in range(6)),
        f"CREATE PUBLICATION {pipeline.database.publication} FOR ALL TABLES",
    )
    options: dict[str, Any] = {
        "tables": (),
        "policies": Policies(
            TablePolicy(
                on_rename="move" if seed % 2 else "keep",
                on_widen="follow" if seed // 2 % 2 else "resync",
                contract="ignore_new" if seed // 4 % 3 == 0 else "evolve",
            )
        ),
    }
    changer, writers = Changer(pipeline, seed), [Changer(pipeline, seed + number) for number in (1, 2)]

    def write(writer: Changer) -> None:
        while not writing.stopped.wait(0.02):
            writer.rows()

    writing = Background(*(partial(write, writer) for writer in writers))
    with pipeline.running(watch_interval_s=0.5, **options) as running:
        with writing:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until and running.thread.is_alive():
                changer.ddl()
                writing.stopped.wait(EVERY)
        running.wait_until(lambda: settled(pipeline), seconds=120)
    for session in (changer, *writers):
        session.close()
    for _ in range(2):
        pipeline.run(**options)
    print(f"{changer.done} statements done and {changer.failed} refused, {sum(w.done for w in writers)} transactions")
    spool = Spool(tmp_path / "spool" / "test")
    spool.read()
    with pipeline.database.connect() as connection:
        found = spool.verdicts(connection, pipeline.database.publication)
    assert [one for one in found if (one.state, one.differences) != ("live", ())] == []
    begun = [table for entry in pipeline.entries() for table in entry.tables if table.cause]
    assert all(body.reason for body in begun)
    carried = [table for table in pipeline.state().tables.values() if table.state != State.DETACHED]
    assert len({table.path for table in carried}) == len(carried)


def settled(pipeline: IngestPipeline) -> bool:
    states = {table.state for table in pipeline.state().tables.values()}
    return states <= {State.LIVE, State.DETACHED}
