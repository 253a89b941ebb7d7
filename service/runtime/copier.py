"""Initial rows: tables in state `copying` are read from an exported snapshot while their changes already flow.

Invariant: a generation's copy is published only whole, and only if the snapshot provably shows the table as it was (lock, then relfilenode as before the slot).
The rows are as of `snapshot_lsn`; every commit after it reaches the table through the stream, because the table was recorded in the manifest before the
snapshot was taken. One entry publishes a copy, so one cut short leaves nothing behind that anyone would read.
Runs in a thread of its own, with connections of its own.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import structlog

from service import faults
from service.contract import keys
from service.contract.entries import Copy, Segment
from service.contract.schema import TableSchema
from service.errors import SourceUnavailable, UnsupportedChange
from service.lsn import show
from service.manifest.log import ManifestLog
from service.protocol.copyrows import CopyRows
from service.protocol.tuples import RowColumns
from service.runtime.committer import Committer
from service.runtime.tables import TableBook, same_shape
from service.source.catalog import Catalog, TableFacts
from service.source.copy import SnapshotRaced, copy_table
from service.source.schemas import relation_of
from service.source.sessions import SourceOptions, open_query
from service.source.snapshot import Blocker, SnapshotHolder, Waiting
from service.spool.encode import EncodedRows, encode_rows
from service.spool.segment import SegmentWriter
from service.telemetry import catalogue
from service.telemetry.distribution import Distribution

SEGMENT_BYTES = 64 << 20
"""Received bytes per copy segment: about 20 MB of Parquet, small enough to hold several in memory while they upload."""
PROGRESS_SECONDS = 5.0


@dataclass(slots=True)
class CopyTotals:
    """All copies of one process together, for metrics; `beat` is when the copier last went round or took rows, unix seconds."""

    rows: int = 0
    bytes: int = 0
    table_seconds: Distribution = field(default_factory=lambda: Distribution(catalogue.SNAPSHOT_DURATION.buckets))
    beat: float = 0.0


@dataclass(slots=True)
class CopyProgress:
    """What `status` and the logs show of copies under way. Replaced whole by the copier, read by others.

    `rows` and `bytes` are of the present `table`, begun at `table_started_at` (monotonic); `rows_before` are those of the tables finished in this round.
    `waiting` has the server's estimate of rows by table for those not begun yet, negative where it has none.
    """

    table: str = ""
    rows: int = 0
    bytes: int = 0
    estimated_rows: int = 0
    tables_done: int = 0
    tables_total: int = 0
    rows_before: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)
    table_started_at: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    """Unix seconds, for people and metrics."""

    def begin(self, table: str, *, estimated_rows: int) -> None:
        """The next table's turn."""
        self.rows_before += self.rows
        self.waiting = {name: rows for name, rows in self.waiting.items() if name != table}
        self.table, self.rows, self.bytes, self.estimated_rows, self.table_started_at = table, 0, 0, estimated_rows, time.monotonic()

    @property
    def expected_rows(self) -> int | None:
        """Rows of the whole round: those of finished tables and what the server expects of the others. None where it has no estimate for one."""
        estimates = [*self.waiting.values(), *([self.estimated_rows] if self.table else [])]
        if min(estimates, default=0) < 0:
            return None
        return self.rows_before + max(self.rows, self.estimated_rows) + sum(self.waiting.values())

    def seconds_left(self, now: float) -> float | None:
        """Until the round is finished at its rate so far; `now` is monotonic. None while there is no rate and where estimates say nothing (any more)."""
        done, expected, seconds = self.rows_before + self.rows, self.expected_rows, now - self.started_at
        return None if expected is None or not 0 < done < expected or seconds <= 0 else (expected - done) * seconds / done


class Copier:
    """Copies whatever the book says is `copying`. `run_once` is called again and again until nothing is left."""

    def __init__(
        self, *, options: SourceOptions, log: ManifestLog, book: TableBook, committer: Committer, numbers: Iterator[int], stop: threading.Event
    ) -> None:
        self._options = options
        self._log = log
        self._book = book
        self._committer = committer
        self._numbers = numbers
        self._stop = stop
        self._raced: set[int] = set()
        self._logger = structlog.get_logger("copy")
        self.progress = CopyProgress()
        self.totals = CopyTotals()

    @property
    def pending(self) -> list[str]:
        """Table ids that wait for their rows."""
        return [table.table_id for table in self._book.states().values() if table.state == "copying"]

    def run_once(self) -> int:
        """Copies every pending table from one snapshot; returns how many were finished. Raises SourceUnavailable when the connection is lost."""
        self._finish_published()
        wanted = self.pending
        if not wanted:
            return 0
        with closing(open_query(self._options)) as connection:
            catalog = Catalog(connection)
            found = {table_id: catalog.table(int(table_id), publication=self._options.publication) for table_id in wanted}
        facts: list[TableFacts] = []
        for table_id, fact in found.items():
            if fact is None:
                self._book.detach(int(table_id), "dropped at the source before it was copied")
            elif self._prepare(table_id, fact):
                facts.append(fact)
        if not facts:
            return 0
        self.progress = CopyProgress(tables_total=len(facts), waiting={fact.qualified_name: fact.estimated_rows for fact in facts})
        self._logger.info("taking a snapshot to copy from", tables=len(facts))
        waiting = Waiting(report=self._report_blockers, cancelled=self._stop.is_set)
        with closing(SnapshotHolder.open(self._options, waiting=waiting)) as holder:
            self._logger.info("snapshot taken", snapshot_lsn=show(holder.consistent_lsn))
            return sum(self._copy(fact, holder) for fact in facts if not self._stop.is_set())

    def _finish_published(self) -> None:
        """A process may die between the copy's entry and the table's: the copy is whole then, and only the state is missing."""
        for table_id in self.pending:
            copied = self._book.states()[table_id].copy
            if copied is not None and copied.final:
                self._book.live(int(table_id), snapshot_lsn=copied.snapshot_lsn)

    def _prepare(self, table_id: str, facts: TableFacts) -> bool:
        """Sees to it that the recorded shape is the one the copy will have; a table that changed since it joined begins a new generation."""
        state = self._book.states()[table_id]
        relation = relation_of(facts)
        if state.schemas and same_shape(state.schemas[max(state.schemas)], relation):
            return True
        return self._book.begin_copy(facts) is not None

    def _report_blockers(self, blockers: Sequence[Blocker]) -> None:
        self._logger.warning(
            "the snapshot waits for older transactions to end",
            processes=[one.pid for one in blockers if one.pid],
            prepared=sum(not one.pid for one in blockers),
        )

    def _copy(self, facts: TableFacts, holder: SnapshotHolder) -> int:
        state = self._book.states()[str(facts.oid)]
        schema = state.schemas[max(state.schemas)]
        name = schema.qualified_name
        self.progress.begin(name, estimated_rows=facts.estimated_rows)
        self._logger.info("copy started", table=name, generation=state.generation, estimated_rows=facts.estimated_rows)
        try:
            segments = list(self._read(facts, schema, holder))
        except SnapshotRaced as error:
            self._raced.add(facts.oid)
            self._logger.warning("the table changed while it was copied, a new snapshot follows", table=name, reason=str(error))
            return 0
        except UnsupportedChange as error:
            self._book.mark_stale(facts.oid, str(error), lsn=holder.consistent_lsn)
            return 0
        entry = Copy(schema.table_id, state.generation, schema.version, holder.consistent_lsn, tuple(future.result() for future in segments), final=True)
        faults.point("copy.final.before")
        self._log.append(entry)
        faults.point("copy.final.after")
        self._book.live(facts.oid, snapshot_lsn=holder.consistent_lsn)
        self.progress.tables_done += 1
        self.totals.table_seconds.add(time.monotonic() - self.progress.table_started_at)
        self._logger.info("copy finished", table=name, rows=sum(segment.rows for segment in entry.segments), snapshot_lsn=show(holder.consistent_lsn))
        return 1

    def _read(self, facts: TableFacts, schema: TableSchema, holder: SnapshotHolder) -> Iterator["Future[Segment]"]:
        reader = CopyRows(len(schema.columns))
        writer = SegmentWriter(schema)
        ordinal = received = 0
        shown = time.monotonic()
        now_us = time.time_ns() // 1000
        for chunks in copy_table(self._options, schema=schema, facts=facts, snapshot=holder.snapshot_name, accept_empty=facts.oid in self._raced):
            if self._stop.is_set():
                raise SourceUnavailable(f"the copy of {schema.qualified_name} was stopped", hint="it begins again at the next start")
            rows = reader.feed(chunks)
            count = len(rows.op)
            if count:
                writer.append(_encode(rows, schema, lsn=holder.consistent_lsn, ordinal=ordinal, time_us=now_us))
            ordinal += count
            taken = sum(map(len, chunks))
            received += taken
            self.progress.rows, self.progress.bytes = ordinal, received
            self.totals.rows, self.totals.bytes, self.totals.beat = self.totals.rows + count, self.totals.bytes + taken, time.time()
            if writer.nbytes >= SEGMENT_BYTES:
                yield self._finish(writer, schema)
                writer = SegmentWriter(schema)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                self._logger.info("copying", table=schema.qualified_name, rows=ordinal, estimated_rows=facts.estimated_rows)
        reader.close()
        if writer.nbytes:
            yield self._finish(writer, schema)

    def _finish(self, writer: SegmentWriter, schema: TableSchema) -> "Future[Segment]":
        key = keys.segment(schema.table_id, self._log.state.epoch, next(self._numbers))
        return self._committer.upload(key, schema, writer.finish())


def _encode(rows: RowColumns, schema: TableSchema, *, lsn: int, ordinal: int, time_us: int) -> EncodedRows:
    count = len(rows.op)
    return encode_rows(
        rows,
        schema,
        ordinal=np.arange(ordinal, ordinal + count),
        xid=np.zeros(count, np.int64),
        lsn=np.full(count, lsn, np.int64),
        commit_time_us=np.full(count, time_us, np.int64),
    )
