"""The source of the day: a table for every kind of key and shape, and clients that write to all of them."""

import itertools
import threading
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import psycopg

from tests.support.background import beside
from tests.support.extent import FULL
from tests.support.sources import Database

ROWS = 200_000
_COLUMNS = ", ".join(f"c{number} int" for number in range(220))
SCHEMA = (
    "CREATE TABLE ints (id int PRIMARY KEY, v text)",
    f"INSERT INTO ints SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i",
    "CREATE TABLE composite (a int, b text, v int, PRIMARY KEY (a, b))",
    "INSERT INTO composite SELECT i, 'b' || i, i FROM generate_series(1, 50) i",
    "CREATE TABLE texts (id text PRIMARY KEY, v int)",
    "INSERT INTO texts SELECT 'k' || i, i FROM generate_series(1, 50) i",
    "CREATE TABLE uuids (id uuid PRIMARY KEY, v int)",
    "INSERT INTO uuids SELECT md5(i::text)::uuid, i FROM generate_series(1, 50) i",
    "CREATE TABLE floats (id double precision PRIMARY KEY, v int)",
    "INSERT INTO floats SELECT i + 0.5, i FROM generate_series(1, 50) i",
    "CREATE TABLE unkeyed (a int, v text)",
    "ALTER TABLE unkeyed REPLICA IDENTITY FULL",
    "INSERT INTO unkeyed SELECT i % 5, 'v' FROM generate_series(1, 50) i",
    "CREATE TABLE by_index (a int NOT NULL, v int)",
    "CREATE UNIQUE INDEX by_index_a ON by_index (a)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a",
    "INSERT INTO by_index SELECT i, i FROM generate_series(1, 50) i",
    "CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (25)",
    "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (25) TO (1000000)",
    "INSERT INTO parted SELECT i, i FROM generate_series(1, 50) i",
    f"CREATE TABLE wide (id int PRIMARY KEY, v int, {_COLUMNS})",
    "INSERT INTO wide (id, v, c7) SELECT i, i, i FROM generate_series(1, 50) i",
    "CREATE TABLE big (id int PRIMARY KEY, v int, body text)",
    "INSERT INTO big SELECT i, i, repeat(md5(i::text), 9000) || md5((i * 2)::text) FROM generate_series(1, 5) i",
    "ALTER TABLE big ALTER COLUMN body SET STORAGE EXTERNAL",
    "UPDATE big SET body = body || md5(id::text)",
    "CREATE TYPE mood AS ENUM ('calm', 'busy')",
    "CREATE TABLE moods (id int PRIMARY KEY, v mood)",
    "INSERT INTO moods SELECT i, 'calm' FROM generate_series(1, 50) i",
    "CREATE TABLE lists (id int PRIMARY KEY, v int[], w text[])",
    "INSERT INTO lists SELECT i, ARRAY[i, NULL, 3], ARRAY['a', 'b'] FROM generate_series(1, 50) i",
    "CREATE TABLE scratch (id int PRIMARY KEY)",
)
TABLES = (
    *("ints", "composite", "texts", "uuids", "floats", "unkeyed", "by_index", "parted", "wide", "big", "moods"),
    "lists",
)
"""Those that the day keeps; `scratch` leaves and comes back."""
_WORK = (
    "UPDATE ints SET v = 'n{n}' WHERE id = {n}",
    "INSERT INTO composite VALUES ({n}, 'new', {n}) ON CONFLICT DO NOTHING",
    "DELETE FROM composite WHERE b = 'new' AND a < {n} - 20",
    "UPDATE texts SET v = v + 1 WHERE id = 'k7'",
    "UPDATE uuids SET v = v + 1",
    "INSERT INTO floats VALUES ({n} + 0.25, {n}) ON CONFLICT DO NOTHING",
    "UPDATE unkeyed SET v = 'n{n}' WHERE a = {n} % 5",
    "UPDATE by_index SET v = v + 1 WHERE a = {n} % 50",
    "UPDATE parted SET id = id + 1000 * {n} WHERE id = 1 + {n} % 50",
    "UPDATE wide SET v = v + 1, c199 = {n} WHERE id = {n} % 50",
    "UPDATE big SET v = v + 1",
    "UPDATE moods SET v = 'busy' WHERE id = {n} % 50",
    "UPDATE lists SET v = v || {n} WHERE id = {n} % 50",
)
_PAUSE_SECONDS = 0.2 if FULL else 0.5
"""Between ten statements. Without one the load, and not the commands, would take the machine."""


@dataclass
class Load:
    """A client that writes while it goes on. Afterwards the source changes no more."""

    database: Database
    changes: int = 0

    def going_on(self) -> AbstractContextManager[object]:
        return beside(self._work)

    def _work(self, ended: threading.Event) -> None:
        with self.database.connect() as connection:
            for number in itertools.count(1):
                for statement in _WORK:
                    if ended.wait(_PAUSE_SECONDS / 10):
                        return
                    # A statement that meets a change of the table fails, as it would for an application.
                    with suppress(psycopg.Error):
                        connection.execute(statement.format(n=number).encode())
                        self.changes += 1
