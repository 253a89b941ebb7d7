"""One pipeline that bad things happen to: a source under load, real processes behind the proxy with
its oracle, a witness, and the verdict at the end.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice import lsn
from tests.chaos import writer
from tests.chaos.witness import Witness
from tests.support.oracle import Spool
from tests.support.pgproxy import PgProxy
from tests.support.pipeline import QUICK_JAVA, AckOracle, wait_until
from tests.support.sources import Database, fresh_database
from tests.support.workload import TABLE_NAMES, Workload
from tools.local.postgres import PostgresServer
from tools.local.sluice import Pipeline, SluiceProcess

TABLES = (*TABLE_NAMES, writer.LARGE)
NAME = "t"
MAX_DELAY = "100ms"
_END_SECONDS = 90.0
SERVER_KEEPS_LITTLE = "logical_decoding_work_mem = '64kB'"
"""So that middling transactions are streamed."""

SEVERAL_PARTS = f"INSERT INTO {writer.LARGE} SELECT -i, 0, repeat('x', 100) FROM generate_series(1, 1000) i"
"""Twenty blocks, each of them a part of the snapshot."""


class Gate:
    """A place that a process stops at while the gate is closed. Open at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.open()

    def holding(self, point: str) -> str:
        return f"{point}=hold:{self._path}"

    def open(self) -> None:
        self._path.touch()

    def close(self) -> None:
        self._path.unlink()


@dataclass
class World:
    """`spool` is read on demand. Every connection of the pipeline goes through `proxy`, whose
    oracle objects to a wrong acknowledgement.
    """

    database: Database
    proxy: PgProxy
    pipeline: Pipeline
    workload: Workload
    spool: Spool
    witness: Witness | None = None
    _connections: int = 0
    """Of the proxy, before the newest process was started."""

    def set_up(self) -> None:
        """Publication, slot and the snapshots of all tables; what comes after has a witness."""
        self.catch_up()
        self.observe()
        self.check()
        assert not self.spool.transactions

    def observe(self) -> None:
        """From here on the witness sees what is committed. The publication must exist."""
        self.witness = Witness(self.database)

    def ingest(self, *, faults: str = "", interval: str = "", stop: str = "") -> SluiceProcess:
        """`sluice run`, with fault points armed; `interval` is the one between two entries and `stop` its time to
        stop in, if not the default.
        """
        self._connections = self.proxy.connections
        environment = {"SLUICE_FAULTS": faults}
        if interval:
            environment |= {"SLUICE_SPOOL__MAX_DELAY": interval, "SLUICE_SPOOL__MIN_INTERVAL": interval}
        if stop:
            environment["SLUICE_STOP_TIMEOUT"] = stop
        return self.pipeline.start("run", environment=environment)

    def applier(self, *, faults: str = "", stop: str = "20s") -> SluiceProcess:
        return self.pipeline.start("apply", environment={"SLUICE_FAULTS": faults, "SLUICE_STOP_TIMEOUT": stop})

    def streaming(self, process: SluiceProcess) -> None:
        """Returns when `process`, the newest one, acknowledges to the server."""
        wait_until(
            lambda: any(status.connection > self._connections for status in self.proxy.statuses),
            what="streaming",
            processes=(process,),
        )

    def publish(self, process: SluiceProcess) -> None:
        position = self.workload.position()
        wait_until(lambda: self.proxy.flushed > position, what="the transaction is acknowledged", processes=(process,))

    def publish_up_to_the_entry(self, process: SluiceProcess) -> None:
        """A transaction is written, and `process` has come as far as storing its segments."""
        before = self._segments()
        self.workload.transact()
        wait_until(lambda: self._segments() > before, what="the segments are stored", processes=(process,))

    def _segments(self) -> int:
        return sum(1 for _ in self.pipeline.own_spool.glob("data/*/*.parquet"))

    @contextmanager
    def second(self) -> Iterator["World"]:
        """Another instance of the same pipeline, on a machine of its own as it were: configuration,
        log, proxy and oracle are its own.
        """
        first = self.pipeline
        with PgProxy(self.database.server.port, on_status=AckOracle(first.own_spool)) as proxy:
            pipeline = _pipeline(self.database, proxy, first.directory / "second", spool_uri=first.spool_uri)
            yield World(self.database, proxy, pipeline, self.workload, Spool(first.own_spool), self.witness)

    def catch_up(self) -> None:
        """Everything that is committed by now is in the spool."""
        outcome = self.pipeline.run("run", "--until-caught-up", timeout=_END_SECONDS)
        assert outcome.returncode == 0, outcome.stderr[-4000:]

    def check(self) -> None:
        """What must hold at any moment: no acknowledgement was ever wrong, and the log and all it
        names are whole.
        """
        self.proxy.check()
        self.spool.read()

    def assert_exactly_once(self) -> None:
        """Each transaction that the witness saw is in the manifest once, with the same rows of each
        kind in each table, and nothing else is.
        """
        assert self.witness is not None
        self.check()
        self.witness.assert_saw(self.spool.transactions)

    def confirmed(self) -> int:
        query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        return lsn.parse(self.database.one(query, self.database.slot)[0])

    def wait_for_end_of_connection(self) -> None:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        free = lambda: self.database.one(query, self.database.slot) == (False,)  # noqa: E731
        wait_until(free, what="the slot is free", timeout=120)


@contextmanager
def world(server: PostgresServer, folder: Path, *, seed: int, spool: Path | None = None) -> Iterator[World]:
    """Tables with rows, and a pipeline that has not run yet. `spool` is where a local store lies,
    if not below `folder`.
    """
    own_spool = (spool or folder / "spool") / NAME
    with (
        fresh_database(server) as database,
        PgProxy(server.port, on_status=AckOracle(own_spool)) as proxy,
        Workload(database.dsn, seed=seed) as workload,
    ):
        database.execute(f"ALTER DATABASE {database.name} SET {SERVER_KEEPS_LITTLE}", *writer.CREATE, SEVERAL_PARTS)
        workload.create()
        pipeline = _pipeline(database, proxy, folder, spool_uri=spool.as_uri() if spool else "")
        yield World(database, proxy, pipeline, workload, Spool(own_spool))


def _pipeline(database: Database, proxy: PgProxy, folder: Path, *, spool_uri: str) -> Pipeline:
    settings: dict[str, dict[str, Any]] = {
        "source": {
            "slot": database.slot,
            "publication": database.publication,
            "tables": ["public.*"],
            "two_phase": True,
            "snapshot_chunk": "8KiB",
        },
        "spool": {"max_delay": MAX_DELAY, "transaction_memory": "1MiB"},
        "apply": {"poll": "200ms", "driver_memory": "1GiB", "conf": QUICK_JAVA},
        "telemetry": {"listen": "127.0.0.1:0", "apply_listen": "127.0.0.1:0", "log_format": "json"},
    }
    return Pipeline(folder, name=NAME, dsn=proxy.dsn(dbname=database.name), spool_uri=spool_uri, settings=settings)


def events(process: SluiceProcess) -> list[str]:
    with process.log.open("rb") as log:
        log.seek(process.log_start)
        lines = log.read().splitlines()
    return [json.loads(line)["event"] for line in lines if line.startswith(b"{") and line.endswith(b"}")]
