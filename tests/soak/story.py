"""What happens in a long run, and when: changes of shape all the time, restarts in the second and the last quarter of
what is judged. Both halves are alike, and each has a stretch in which every process runs on. A process that begins
with a backlog needs more memory than one that never had any. So each is killed once before what is judged.
"""

import itertools
import time
from collections.abc import Callable, Iterator

import psycopg

from tests.soak.world import World
from tests.support.background import Background

SHAPES_EVERY_SECONDS, RESTARTS_EVERY_SECONDS = 4.5, 5.0
Note = Callable[..., None]
"""Records something that happened: its kind, and fields."""

_PASSING: tuple[tuple[str, ...], ...] = (
    ("ALTER TABLE w_text ADD COLUMN passing_{n} int DEFAULT 3", "ALTER TABLE w_text DROP COLUMN passing_{n}"),
    (
        "CREATE TABLE made_{n} (id int PRIMARY KEY, t text)",
        "INSERT INTO made_{n} SELECT i, 't' FROM generate_series(1, 200) i",
    ),
    ("ALTER TABLE w_uuid RENAME COLUMN day TO day_{n}", "ALTER TABLE w_uuid RENAME COLUMN day_{n} TO day"),
    ("VACUUM FULL w_index",),
    ("UPDATE made_{made} SET t = 'u' WHERE id < 50",),
    ("ALTER TABLE w_pair REPLICA IDENTITY FULL", "ALTER TABLE w_pair REPLICA IDENTITY DEFAULT"),
    ("TRUNCATE w_bag, w_append",),
    ("DROP TABLE made_{made}",),
)
"""All of them leave the tables as they were; the last drops what the second made."""
_MADE = 1
_DONE_BEFORE = (
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UniqueViolation,
)
"""What a statement says whose answer was lost with the connection, when it is tried again."""


class Story(Background):
    """One thread for shapes, one for restarts. What is under way ends before the block does."""

    def __init__(self, world: World, *, warm_seconds: float, judged_seconds: float, note: Note) -> None:
        self._world = world
        self._note = note
        self._warm, self._judged = warm_seconds, judged_seconds
        self._began = time.monotonic()
        super().__init__(self._shapes, self._restarts, patience_seconds=300)

    @property
    def phase(self) -> str:
        """`warm`, then `calm` and `restarts` in turn."""
        at = time.monotonic() - self._began - self._warm
        if at < 0:
            return "warm"
        return "restarts" if int(at / self._judged * 4) % 2 else "calm"

    def _shapes(self) -> None:
        for number in itertools.count():
            if self.stopped.wait(SHAPES_EVERY_SECONDS):
                return
            kind = number % len(_PASSING)
            made = number - kind + _MADE
            for statement in _PASSING[kind]:
                self._execute(statement.format(n=number, made=made))
            self._note("shape", statement=_PASSING[kind][0])

    def _execute(self, statement: str) -> None:
        """Through restarts of the server: what was not done is tried again, as a client would."""
        unsure = False
        while not self.stopped.is_set():
            try:
                with self._world.database.connect() as connection:
                    connection.execute("SET lock_timeout = '5s'")
                    connection.execute(statement.encode())
                return
            except psycopg.OperationalError:
                unsure = True
                self.stopped.wait(0.5)
            except _DONE_BEFORE:
                if not unsure:
                    raise
                return

    def _restarts(self) -> None:
        if self.stopped.wait(self._warm / 2):
            return
        for name in ("ingest", "applier"):
            self._restart(name, kill=True)
        for restart in itertools.cycle(self._kinds()):
            while self.phase != "restarts":
                if self.stopped.wait(0.5):
                    return
            restart()
            if self.stopped.wait(RESTARTS_EVERY_SECONDS):
                return

    def _kinds(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._restart("ingest", kill=False)
        yield lambda: self._server("fast")
        yield lambda: self._restart("applier", kill=False)
        yield lambda: self._restart("ingest", kill=True)
        yield lambda: self._server("immediate")
        yield lambda: self._restart("applier", kill=True)

    def _restart(self, name: str, *, kill: bool) -> None:
        self._world.end(name, kill=kill)
        self._note("restart", process=name, how="kill -9" if kill else "SIGTERM")
        self._note("start", process=name, seconds=round(self._world.start(name), 2))

    def _server(self, mode: str) -> None:
        self._world.restart_server("fast" if mode == "fast" else "immediate")
        self._note("restart", process="server", how=mode)
