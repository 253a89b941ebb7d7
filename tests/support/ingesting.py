"""One pipeline's ingest inside a test: bounded runs against a real server, and what they left in the store."""

import asyncio
import dataclasses
import datetime as dt
import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from sluice import lsn
from sluice.contract.control import Request
from sluice.contract.entries import Changes, Entry, Segment, Snapshot
from sluice.contract.keys import control_request
from sluice.health.endpoint import Health
from sluice.health.export.observer import Observer
from sluice.health.reporter import Reporter
from sluice.ingest.options import FlushPolicy, IngestOptions
from sluice.ingest.receive.stream import StreamLimits
from sluice.ingest.status import IngestStatus
from sluice.ingest.supervisor import Ingest
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.values import PipelineState, TableState
from sluice.settings import Settings, load
from sluice.source.sessions import KnownSource, SourceOptions
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice.tables.policies import Policies, TablePolicy
from sluice.telemetry.metrics import Metrics
from tests.support.oracle import Spool, Verdict
from tests.support.source_setup import server_major
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer

QUICK = StreamLimits(max_delay_s=0.05)

IMMEDIATELY = "?options=-c%20debug_logical_replication_streaming%3Dimmediate"
"""Added to a DSN: the server streams each transaction at once. From 16 on."""
SMALLEST = "?options=-c%20logical_decoding_work_mem%3D64kB"
"""Added to a DSN: the server streams each transaction beyond the least size there is."""


@dataclasses.dataclass
class IngestPipeline:
    """Runs ingest for one database, within this process and without an applier. Options given here
    are replaced per run by `changes`.

    `tools.local.sluice.Pipeline` runs the commands as processes instead.
    """

    database: Database
    store: ObjectStore
    dsn: str = ""
    folder: Path = Path()
    """Where `local` has the store."""

    @classmethod
    def local(cls, database: Database, folder: Path, *, dsn: str = "") -> Self:
        """With a store on disk, below `folder`."""
        return cls(database, open_store((folder / "spool").as_uri(), prefix="test/", options={}), dsn, folder)

    def stream_soon(self) -> None:
        """From here on the server streams as soon as it can: before 16 only size makes it."""
        self.dsn = self.database.dsn + (IMMEDIATELY if server_major(self.database) >= 16 else SMALLEST)

    def execute(self, *statements: str) -> None:
        """At the source, each in a transaction of its own."""
        self.database.execute(*statements)

    def twin(self) -> Self:
        """Another one that has what this one has, with a slot that is where this one's is."""
        kept = f"{self.database.slot}_kept"
        self.execute(f"SELECT pg_copy_logical_replication_slot('{self.database.slot}', '{kept}')")
        database = dataclasses.replace(self.database, slot=kept)
        other = self.local(database, self.folder / "twin", dsn=self.dsn)
        for key in self.store.list(""):
            other.store.put(key, self.store.get(key))
        return other

    def publish(self, *tables: str) -> None:
        """These alone, and partitions under their roots."""
        self.execute(f"CREATE PUBLICATION {{p}} FOR TABLE {', '.join(tables)} WITH (publish_via_partition_root)")

    def configured(self, more: str = "") -> Path:
        """Its configuration in a file, as commands take it. `more` is of the lake, behind its address."""
        source = (
            f"dsn: '{self.dsn or self.database.dsn}', slot: {self.database.slot}, "
            f"publication: {self.database.publication}, allow_insecure: true"
        )
        spool, lake = ((self.folder / name).as_uri() for name in ("spool", "lake"))
        file = self.folder / "sluice.yaml"
        file.write_text(
            f"version: 1\npipeline: test\nsource: {{{source}}}\nspool: {{uri: '{spool}'}}\n"
            f"lake: {{uri: '{lake}'{more}}}\n"
        )
        return file

    def settings(self, more: str = "") -> Settings:
        return load(str(self.configured(more)), environ={}).settings

    def options(self, **changes: Any) -> IngestOptions:
        source = SourceOptions(
            dsn=self.dsn or self.database.dsn,
            slot=self.database.slot,
            publication=self.database.publication,
            application_name=self.database.slot,
        )
        plain = IngestOptions(
            pipeline="test",
            source=source,
            tables=("*",),
            # What a change does to a table is judged before a new snapshot covers it.
            policies=Policies(TablePolicy(on_change="stop")),
            stream=QUICK,
            flush=FlushPolicy(max_delay_s=0.05),
            slot_wait_s=10,
            instance="test",
        )
        return dataclasses.replace(plain, **changes)

    def known(self) -> KnownSource:
        """The source, held to the place of which the manifest is."""
        opened = self.state().opened
        assert opened is not None
        return KnownSource.of(self.options().source, opened)

    def run(self, *before: str, **changes: Any) -> Ingest:
        """Until everything committed by now is durable and acknowledged, and every snapshot is finished; `times=2` does
        so again, for what one run finds and the next one carries out. The statements come `before`.
        """
        times = changes.pop("times", 1)
        if before:
            self.execute(*before)
        *_, last = (self.run_until(lsn.parse(self.wal_end()), **changes) for _ in range(times))
        return last

    def run_until(self, target: int, **changes: Any) -> Ingest:
        async def bounded() -> Ingest:
            ingest = Ingest(self.options(**changes), self.store)
            await asyncio.wait_for(ingest.run(until_lsn=target), 90)
            return ingest

        return asyncio.run(bounded())

    @contextmanager
    def running(self, **changes: Any) -> Iterator["Running"]:
        """Ingest in a thread of its own until the block ends, or `until_lsn`; an error of it is raised at the end."""
        until_lsn = changes.pop("until_lsn", None)
        running = Running(self, self.options(**changes), until_lsn)
        running.thread.start()
        running.started.wait(120)
        try:
            yield running
        finally:
            running.stop()
        if running.error is not None:
            raise running.error

    def reporter(self, source: SourceOptions | None = None) -> Reporter:
        """What looks at the pipeline from outside, and at its source where one is given."""
        return Reporter(pipeline="test", store=self.store, lake_uri="file:///nowhere", source=source)

    def observer(self, ingest: Ingest, *, reporter: Reporter, metrics: Metrics, health: Health) -> Observer:
        """What watches `ingest`. Its status is as fresh as the last `Ingest.refresh`."""
        return Observer(
            status=ingest.status,
            errors=ingest.errors,
            reporter=reporter,
            metrics=metrics,
            health=health,
        )

    def request(self, *actions: str, table: str, place: str = "0") -> None:
        """Asks for `actions` on `public.<table>`, one behind the other, as the commands do."""
        for number, action in enumerate(actions):
            wanted = Request(action, "public", table, "2030-01-01T00:00:00+00:00")
            self.store.create(control_request(f"{place}-{number:04d}-{table}"), wanted.encode())

    def wal_end(self) -> str:
        """The position after a commit record written now, so that nothing before it is missed."""
        row = self.database.one(
            "SELECT pg_catalog.pg_logical_emit_message(true, 'test', ''), pg_catalog.pg_current_wal_insert_lsn()"
        )
        return str(row[1])

    def entries(self) -> list[Entry]:
        return [entry for entry, _ in read_entries(self.store, after_seq=0)]

    def state(self) -> PipelineState:
        return load_state(self.store)

    def states(self) -> set[str]:
        """Those that any table has."""
        return {table.state for table in self.state().tables.values()}

    def table(self, name: str) -> TableState:
        """The newest table of this name (`schema.table`)."""
        found = [table for table in self.state().tables.values() if f"{table.schema_name}.{table.table_name}" == name]
        return max(found, key=lambda table: table.generation_seq)

    def changes(self) -> list[Changes]:
        return [entry.body for entry in self.entries() if isinstance(entry.body, Changes)]

    def commits(self) -> list[int]:
        return [end for change in self.changes() for end in change.commits.end_lsn]

    def segments(self, name: str, *, snapshot: bool = False) -> list[Segment]:
        table_id = self.table(name).table_id
        bodies = [entry.body for entry in self.entries()]
        kind = Snapshot if snapshot else Changes
        return [
            segment
            for body in bodies
            if isinstance(body, kind)
            for segment in body.segments
            if segment.table_id == table_id
        ]

    def rows(self, name: str, *, snapshot: bool = False) -> list[dict[str, Any]]:
        """Change rows of a table in commit order, envelope included; commit positions of body segments filled in."""
        rows: list[dict[str, Any]] = []
        for segment in self.segments(name, snapshot=snapshot):
            table = pq.read_table(io.BytesIO(self.store.get(segment.key)))
            for row in table.to_pylist(maps_as_pydicts="strict"):
                if segment.body is not None:
                    if row["_sluice_xid"] in segment.body.aborted_xids:
                        continue
                    row["_sluice_lsn"] = segment.body.end_lsn
                    row["_sluice_ts"] = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
                        microseconds=segment.body.commit_time_us
                    )
                rows.append(row)
        return sorted(rows, key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"]))

    def snapshot_rows(self, name: str) -> set[tuple[str, ...]]:
        """Rows of the newest snapshot of a table, as text: all it has, when nobody wrote to it afterwards."""
        table = self.table(name)
        assert table.snapshot is not None
        assert table.snapshot.final
        columns = [column.name for column in table.schemas[table.snapshot.schema_version].columns]
        rows = [row for row in self.rows(name, snapshot=True) if row["_sluice_lsn"] == table.snapshot.snapshot_lsn]
        return {tuple(str(row[column]) for column in columns) for row in rows}

    def ids(self, name: str) -> list[int]:
        """Column `id` of the newest snapshot of a table, which was read at one moment, and of the rows behind it."""
        table = self.table(name)
        assert table.snapshot is not None
        at = table.snapshot.snapshot_lsn
        read = [row["id"] for row in self.rows(name, snapshot=True) if row["_sluice_lsn"] == at]
        return sorted(read + [row["id"] for row in self.rows(name) if row["_sluice_lsn"] > at])

    def source_rows(self, table: str) -> set[tuple[str, ...]]:
        return {tuple(str(value) for value in row) for row in self.database.all(f"SELECT * FROM {table}")}

    def verdicts(self, hash_keys: dict[str, bytes] | None = None) -> list[Verdict]:
        """What the oracle finds in the spool, beside the source; the keys are those of column rules, by their ids."""
        spool = Spool(self.folder / "spool" / "test", hash_keys)
        spool.read()
        with self.database.connect() as connection:
            return spool.verdicts(connection, self.database.publication)

    def silent_differences(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts() if verdict.is_silent_difference]

    def assert_equal(
        self, resyncs: dict[str, int] | None = None, *, hash_keys: dict[str, bytes] | None = None
    ) -> list[Verdict]:
        """Every published table is live and equal. `resyncs`: how often they were read again, by cause."""
        found = self.verdicts(hash_keys)
        assert [one for one in found if (one.state, one.differences) != ("live", ())] == []
        assert found, "nothing was compared"
        if resyncs is not None:
            counts = Counter[str]()
            for table in self.state().tables.values():
                counts.update(table.resyncs.counts)
            assert counts == resyncs
        return found

    def parquet(self, name: str) -> pa.Table:
        return pa.concat_tables(
            [pq.read_table(io.BytesIO(self.store.get(segment.key))) for segment in self.segments(name)]
        )

    def confirmed(self) -> int:
        row = self.database.one(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.database.slot
        )
        return lsn.parse(row[0])


@contextmanager
def encoded_in(server: PostgresServer, folder: Path, encoding: str) -> Iterator[IngestPipeline]:
    """One for a database with another encoding than UTF-8."""
    with fresh_database(server) as database:
        with server.superuser() as admin:
            for statement in (
                f"DROP DATABASE {database.name}",
                f"CREATE DATABASE {database.name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
                f"ALTER DATABASE {database.name} SET client_encoding = 'UTF8'",
            ):
                admin.execute(statement.encode())
        yield IngestPipeline.local(database, folder)


class Running:
    """An ingest that runs beside the test, to its end where `until_lsn` names one."""

    def __init__(self, pipeline: IngestPipeline, options: IngestOptions, until_lsn: int | None = None) -> None:
        self.pipeline = pipeline
        self.started = threading.Event()
        self.error: BaseException | None = None
        self._ingest: Ingest | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._options = options
        self.until_lsn = until_lsn
        self.thread = threading.Thread(target=self._main, daemon=True)

    @property
    def ingest(self) -> Ingest:
        """Waits until it is made. Fails where it could not even be made, with the reason."""
        self.started.wait(120)
        if self._ingest is None:
            raise AssertionError("ingest did not start") from self.error
        return self._ingest

    @property
    def status(self) -> IngestStatus:
        return self.ingest.status

    def stop(self) -> None:
        self.ask_to_stop()
        self.thread.join(120)
        assert not self.thread.is_alive(), "ingest did not stop"

    def ask_to_stop(self) -> None:
        """What SIGTERM asks for; does not wait."""
        if self._ingest is not None:
            self.ask(self._ingest.stop)

    def ask(self, action: Callable[[], object]) -> None:
        """Has the event loop do `action` soon; does not wait. Does nothing when ingest has ended."""
        if self._loop is not None and self.thread.is_alive():
            with suppress(RuntimeError):  # the loop was closed a moment ago
                self._loop.call_soon_threadsafe(action)

    def call(self, action: Callable[[], None]) -> None:
        """Does `action` on the event loop, and all that was due before it. Nothing when ingest has ended."""
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self.ask(act)
        while not done.wait(0.05) and self.thread.is_alive():
            pass

    def wait_until(self, holds: Any, *, seconds: float = 60) -> None:
        """Returns when `holds()` is true; fails when ingest ends or the time is up."""
        tick = threading.Event()
        for _ in range(int(seconds / 0.02)):
            if holds():
                return
            if not self.thread.is_alive():
                raise AssertionError("ingest ended") from self.error
            tick.wait(0.02)
        raise AssertionError("it did not come true in time")

    def wait_until_connected(self) -> None:
        self.wait_until(lambda: self.status.connected)

    def wait_until_live(self) -> None:
        """Every table is, and there is one."""
        self.wait_until(lambda: self.pipeline.states() == {"live"})

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        finally:
            self.started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ingest = Ingest(self._options, self.pipeline.store)
        self.started.set()
        await self._ingest.run(until_lsn=self.until_lsn)
