"""The load of a seeded story: transactions of every kind, until it is stopped."""

import contextlib
import random
from collections.abc import Callable, Sequence

import psycopg

from tests.chaos import writer
from tests.support.background import Background
from tests.support.sources import Database
from tests.support.workload import Workload


class Load(Background):
    """Writes until it is stopped, through every loss of its connection. Two connections: short
    transactions never wait for a large one. `pauses` lie between two of the short ones, one drawn each time;
    `columns` is the share of them that adds a column.
    """

    def __init__(
        self,
        workload: Workload,
        database: Database,
        choice: random.Random,
        *,
        two_phase: bool,
        pauses: Sequence[float] = (0.0, 0.01, 0.05),
        columns: float = 0.02,
    ) -> None:
        self._workload = workload
        self._database = database
        self._choices = [random.Random(choice.random()) for _ in range(2)]
        self._two_phase = two_phase
        self._pauses = pauses
        self._share_of_columns = columns
        self._columns = 0
        super().__init__(lambda: self._repeat(self._small), lambda: self._repeat(self._large))

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self.stopped.is_set():
            with contextlib.suppress(psycopg.OperationalError, psycopg.errors.DatabaseError):
                step()

    def _small(self) -> None:
        choice = self._choices[0]
        if self.stopped.wait(choice.choice(self._pauses)):
            return
        try:
            if choice.random() < self._share_of_columns:
                self._columns += 1
                self._workload.add_column(f"added_{self._columns}", default=choice.choice([None, "it's", "${name}"]))
            else:
                self._workload.transact()
        except psycopg.OperationalError:
            self.stopped.wait(0.2)
            self._workload.reconnect()

    def _large(self) -> None:
        choice = self._choices[1]
        with psycopg.connect(self._database.dsn, autocommit=True) as connection:
            while not self.stopped.wait(choice.uniform(0.1, 0.6)):
                first, count = choice.randrange(0, 3000), choice.choice([3, 60, 300])
                kind = choice.choice(
                    ["commit", "commit", "rollback", *(["prepare", "prepare and roll back"] if self._two_phase else [])]
                )
                connection.execute("BEGIN")
                connection.execute(
                    f"INSERT INTO {writer.LARGE} SELECT i, 0, {writer.BODY} FROM "
                    f"generate_series({first}, {first + count}) i"
                    " ON CONFLICT (id) DO UPDATE SET n = c_large.n + 1".encode()
                )
                with (
                    contextlib.suppress(psycopg.Rollback),
                    connection.transaction(force_rollback=choice.random() < 0.5),
                ):
                    connection.execute(
                        (
                            f"UPDATE {writer.LARGE} SET n = -1, id = -id WHERE id % 17 = "
                            f"{choice.randrange(17)} AND id > 0"
                        ).encode()
                    )
                connection.execute(f"DELETE FROM {writer.LARGE} WHERE id % 23 = {choice.randrange(23)}".encode())
                if kind.startswith("prepare"):
                    gid = f"{self._database.name}-{choice.getrandbits(48):x}"
                    connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
                    self.stopped.wait(choice.uniform(0, 0.3))
                    connection.execute(f"{'ROLLBACK' if 'roll' in kind else 'COMMIT'} PREPARED '{gid}'".encode())
                else:
                    connection.execute(kind.upper().encode())
