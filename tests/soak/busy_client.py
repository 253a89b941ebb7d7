"""A client that commits thousands of transactions a second, each of one changed row."""

import time

import psycopg

from tests.support.background import Background
from tests.support.sources import Database

ROWS, BATCH = 1000, 5000
CREATE = (
    "CREATE TABLE w_count (id int PRIMARY KEY, n bigint NOT NULL)",
    f"INSERT INTO w_count SELECT i, 0 FROM generate_series(0, {ROWS - 1}) i",
    f"""CREATE PROCEDURE count_up(transactions int) LANGUAGE plpgsql AS $$
    BEGIN
        FOR i IN 1..transactions LOOP
            UPDATE w_count SET n = n + 1 WHERE id = i % {ROWS};
            COMMIT;
        END LOOP;
    END $$""",
)


class BusyClient(Background):
    """Commits `rate` transactions a second until it is stopped, and what a restart of the server kept it from
    afterwards. The tables of CREATE must be there.

    The server does not wait for its disk: a crash of it takes back the newest transactions.
    """

    def __init__(self, database: Database, *, rate: float) -> None:
        self._database = database
        self._rate = rate
        super().__init__(self._count_on, patience_seconds=120)

    def committed(self) -> int:
        return int(self._database.one("SELECT sum(n)::bigint FROM w_count")[0])

    def _count_on(self) -> None:
        began = time.monotonic()
        while not self.stopped.wait(0.5):
            try:
                with self._database.connect() as connection:
                    connection.execute("SET synchronous_commit = off")
                    self._count_up(connection, began)
            except psycopg.OperationalError:
                continue

    def _count_up(self, connection: psycopg.Connection, began: float) -> None:
        done = self.committed()
        while not self.stopped.wait(0.1):
            due = int((time.monotonic() - began) * self._rate) - done
            while due > 0 and not self.stopped.is_set():
                connection.execute("CALL count_up(%s)", (min(due, BATCH),))
                done, due = done + min(due, BATCH), due - BATCH
