"""Load that goes on while processes die: the seeded workload, beside it large transactions that are
streamed before they end, and prepared ones.
"""

import itertools
import queue
import threading
import uuid
from collections.abc import Callable

import psycopg

from tests.support.background import Background
from tests.support.workload import Workload

LARGE = "c_large"
CREATE = (
    f"CREATE TABLE {LARGE} (id bigint PRIMARY KEY, n int NOT NULL, body text)",
    f"ALTER TABLE {LARGE} ALTER COLUMN body SET STORAGE EXTERNAL",
)
_ROWS = 300
"""About 1.5 MB of changes: past the server's memory for decoding and past ours for one open
transaction.
"""
BODY = "(SELECT string_agg(md5(i || '-' || j), '') FROM generate_series(1, 150) j)"


class Writer(Background):
    """Writes until the block ends. `pause_s` lies between two transactions of the workload."""

    def __init__(self, workload: Workload, dsn: str, *, pause_s: float, large_pause_s: float) -> None:
        self._workload = workload
        self._dsn = dsn
        self._pauses = (pause_s, large_pause_s)
        self._token = uuid.uuid4().hex[:8]
        self._asked: queue.SimpleQueue[Callable[[Workload], None]] = queue.SimpleQueue()
        super().__init__(self._write_small, self._write_large, self._write_prepared)

    def ask(self, action: Callable[[Workload], None]) -> None:
        """Has the workload do `action` between two transactions; returns when it has."""
        done = threading.Event()

        def act(workload: Workload) -> None:
            action(workload)
            done.set()

        self._asked.put(act)
        assert done.wait(60), "the writer does not answer"

    def _write_small(self) -> None:
        while not self.stopped.wait(self._pauses[0]):
            while not self._asked.empty():
                self._asked.get()(self._workload)
            self._workload.transact()

    def _write_large(self) -> None:
        """Each with a part that is rolled back, and open for long enough that others commit in
        between.
        """
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for number in itertools.count():
                if self.stopped.wait(self._pauses[1]):
                    return
                first = number * _ROWS
                with connection.transaction():
                    connection.execute(
                        (
                            f"INSERT INTO {LARGE} SELECT i, 0, {BODY} FROM generate_series({first}, "
                            f"{first + _ROWS - 1}) i"
                        ).encode()
                    )
                    with connection.transaction(force_rollback=True):
                        connection.execute(f"UPDATE {LARGE} SET n = -1, body = 'never' WHERE id >= {first}".encode())
                    connection.execute(f"UPDATE {LARGE} SET n = n + 1 WHERE id % 7 = 0".encode())
                    connection.execute(
                        f"DELETE FROM {LARGE} WHERE id < {first - _ROWS} OR id % 11 = {number % 11}".encode()
                    )

    def _write_prepared(self) -> None:
        """Every third is rolled back, and each stays open for a while."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for number in itertools.count(1):
                gid = f"{self._token}-{number}"
                connection.execute("BEGIN")
                connection.execute(
                    (
                        f"INSERT INTO {LARGE} VALUES (-{number}, 0, 'prepared') ON CONFLICT (id) DO "
                        "UPDATE SET n = c_large.n + 1"
                    ).encode()
                )
                connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
                stopped = self.stopped.wait(self._pauses[1] / 4)
                connection.execute(f"{'ROLLBACK' if number % 3 == 0 else 'COMMIT'} PREPARED '{gid}'".encode())
                if stopped:
                    return
