"""One pipeline's ingest inside a test: bounded runs against a real server, and what they left in
the store.
"""

import asyncio
import dataclasses
import datetime as dt
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

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
from sluice.ingest.supervisor import Ingest
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.values import PipelineState, TableState
from sluice.source.sessions import KnownSource, SourceOptions
from sluice.store.base import ObjectStore
from sluice.tables.policies import Policies, TablePolicy
from sluice.telemetry.metrics import Metrics
from tests.support.sources import Database

QUICK = StreamLimits(max_delay_s=0.05)

IMMEDIATELY = "?options=-c%20debug_logical_replication_streaming%3Dimmediate"
"""Added to a DSN: the server streams each transaction at once. From 16 on."""


@dataclasses.dataclass
class IngestPipeline:
    """Runs ingest for one database, within this process and without an applier. Options given here
    are replaced per run by `changes`.

    `tools.local.sluice.Pipeline` runs the commands as processes instead.
    """

    database: Database
    store: ObjectStore
    dsn: str = ""

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

    def run(self, **changes: Any) -> Ingest:
        """Until everything committed by now is durable and acknowledged, and every snapshot is
        finished.
        """
        target = lsn.parse(self.wal_end())
        return self.run_until(target, **changes)

    def run_until(self, target: int, **changes: Any) -> Ingest:
        async def bounded() -> Ingest:
            ingest = Ingest(self.options(**changes), self.store)
            await asyncio.wait_for(ingest.run(until_lsn=target), 90)
            return ingest

        return asyncio.run(bounded())

    @contextmanager
    def running(self, **changes: Any) -> Iterator["Running"]:
        """Ingest in a thread of its own until the block ends; an error of it is raised at the end."""
        running = Running(self, self.options(**changes))
        running.thread.start()
        running.started.wait(120)
        try:
            yield running
        finally:
            running.stop()
        if running.error is not None:
            raise running.error

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
        """Change rows of a table in commit order, envelope included; commit positions of body
        segments filled in.
        """
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
        """Rows of the newest snapshot of a table, as text: all it has, when nobody wrote to it
        afterwards.
        """
        table = self.table(name)
        assert table.snapshot is not None
        assert table.snapshot.final
        columns = [column.name for column in table.schemas[table.snapshot.schema_version].columns]
        rows = [row for row in self.rows(name, snapshot=True) if row["_sluice_lsn"] == table.snapshot.snapshot_lsn]
        return {tuple(str(row[column]) for column in columns) for row in rows}

    def source_rows(self, table: str) -> set[tuple[str, ...]]:
        return {tuple(str(value) for value in row) for row in self.database.all(f"SELECT * FROM {table}")}

    def parquet(self, name: str) -> pa.Table:
        return pa.concat_tables(
            [pq.read_table(io.BytesIO(self.store.get(segment.key))) for segment in self.segments(name)]
        )

    def confirmed(self) -> int:
        row = self.database.one(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.database.slot
        )
        return lsn.parse(row[0])


class Running:
    """An ingest that runs beside the test."""

    def __init__(self, pipeline: IngestPipeline, options: IngestOptions) -> None:
        self.pipeline = pipeline
        self.started = threading.Event()
        self.error: BaseException | None = None
        self.ingest: Ingest | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._options = options
        self.thread = threading.Thread(target=self._main, daemon=True)

    def stop(self) -> None:
        self.ask_to_stop()
        self.thread.join(120)
        assert not self.thread.is_alive(), "ingest did not stop"

    def ask_to_stop(self) -> None:
        """What SIGTERM asks for; does not wait."""
        if self.ingest is not None:
            self.ask(self.ingest.stop)

    def ask(self, action: Callable[[], object]) -> None:
        """Has the event loop do `action` soon; does not wait. Does nothing when ingest has ended."""
        if self._loop is not None and self.thread.is_alive():
            with suppress(RuntimeError):  # the loop was closed a moment ago
                self._loop.call_soon_threadsafe(action)

    def call(self, action: Callable[[], None]) -> None:
        """Does `action` on the event loop and returns when it, and all that was due before it, is
        done. Does nothing when ingest has ended.
        """
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

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        finally:
            self.started.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ingest = Ingest(self._options, self.pipeline.store)
        self.started.set()
        await self.ingest.run()
