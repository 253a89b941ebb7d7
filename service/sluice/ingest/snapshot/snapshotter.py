"""Initial rows: tables in state `copying` are read from an exported snapshot while their changes
already flow.

Invariant: a generation's copy is published only whole, and only if the snapshot provably shows the
table as it was (lock, then relfilenode as before the slot). The rows are as of `snapshot_lsn`;
every commit after it reaches the table through the stream, because the table was recorded in the
manifest before the snapshot was taken. One entry publishes a copy, makes the table live and carries
the facts that were read before the snapshot. What changed during the copy is looked for before the
entry, and whatever changes between that look and the entry is found by the catalog watch, which
compares with the facts of the entry. A table that cannot be read, or is locked, never holds up the
others. Runs in a thread of its own, with connections of its own.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field

import numpy as np
import structlog

from sluice import faults
from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Copy, Segment
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.errors import SourceUnavailable, UnsupportedChange
from sluice.ingest.commit.committer import Committer
from sluice.ingest.encode.large import write_large
from sluice.ingest.encode.rows import EncodedRows, encode_rows
from sluice.ingest.encode.segment import SegmentFile, SegmentWriter
from sluice.ingest.snapshot.reader import SnapshotRaced, TableLocked, TableRefused, copy_table
from sluice.ingest.tables.book import TableBook
from sluice.ingest.tables.catalog_diff import compare, fingerprint
from sluice.lsn import show
from sluice.manifest.log import ManifestLog
from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.tuples import RowColumns
from sluice.source.catalog import Catalog
from sluice.source.sessions import NoFreeSlot, SourceOptions, open_query
from sluice.source.snapshot_export import Blocker, SnapshotHolder, Waiting
from sluice.telemetry import catalogue
from sluice.telemetry.distribution import Distribution

SEGMENT_BYTES = 64 << 20
"""Received bytes per copy segment: about 20 MB of Parquet, small enough to hold several in memory
while they upload.
"""
PROGRESS_SECONDS = 5.0
WAIT_SECONDS = (5.0, 10.0, 30.0)
"""Pauses before a locked table is tried again, and before another slot is asked for; the last one
repeats. Each try costs the source a snapshot.
"""


@dataclass(slots=True)
class CopyTotals:
    """All copies of one process together, for metrics; `beat` is when the copier last went round or
    took rows, unix seconds.
    """

    rows: int = 0
    bytes: int = 0
    table_seconds: Distribution = field(default_factory=lambda: Distribution(catalogue.SNAPSHOT_DURATION.buckets))
    beat: float = 0.0


@dataclass(slots=True)
class CopyProgress:
    """What `status` and the logs show of copies under way. Replaced whole by the copier, read by
    others.

    `rows` and `bytes` are of the present `table`, begun at `table_started_at` (monotonic);
    `rows_before` are those of the tables finished in this round. `waiting` has the server's
    estimate of rows by table for those not begun yet, negative where it has none.
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
        self.table, self.rows, self.bytes, self.estimated_rows, self.table_started_at = (
            table,
            0,
            0,
            estimated_rows,
            time.monotonic(),
        )

    @property
    def expected_rows(self) -> int | None:
        """Rows of the whole round: those of finished tables and what the server expects of the
        others. None where it has no estimate for one.
        """
        estimates = [*self.waiting.values(), *([self.estimated_rows] if self.table else [])]
        if min(estimates, default=0) < 0:
            return None
        return self.rows_before + max(self.rows, self.estimated_rows) + sum(self.waiting.values())

    def seconds_left(self, now: float) -> float | None:
        """Until the round is finished at its rate so far; `now` is monotonic. None while there is
        no rate and where estimates say nothing (any more).
        """
        done, expected, seconds = self.rows_before + self.rows, self.expected_rows, now - self.started_at
        return (
            None if expected is None or not 0 < done < expected or seconds <= 0 else (expected - done) * seconds / done
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """One table to be copied: its facts from before the snapshot, and the generation and shape that
    they began or agree with.
    """

    facts: TableFacts
    schema: TableSchema
    generation: int


@dataclass(slots=True)
class _Pause:
    """When something that had to wait may be tried again, monotonic."""

    tries: int = 0
    until: float = 0.0

    def again(self) -> None:
        """It has to wait once more."""
        self.until = time.monotonic() + WAIT_SECONDS[min(self.tries, len(WAIT_SECONDS) - 1)]
        self.tries += 1

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until


class Copier:
    """Copies whatever the book says is `copying`. `run_once` is called again and again until
    nothing is left.
    """

    def __init__(
        self,
        *,
        options: SourceOptions,
        log: ManifestLog,
        book: TableBook,
        committer: Committer,
        numbers: Iterator[int],
        stop: threading.Event,
    ) -> None:
        self._options = options
        self._log = log
        self._book = book
        self._committer = committer
        self._numbers = numbers
        self._stop = stop
        self._raced: set[int] = set()
        self._locked: dict[str, _Pause] = {}
        self._slot = _Pause()
        self._logger = structlog.get_logger("copy")
        self.progress = CopyProgress()
        self.totals = CopyTotals()

    @property
    def pending(self) -> list[str]:
        """Table ids that wait for their rows."""
        return [table.table_id for table in self._book.states().values() if table.state == State.COPYING]

    def run_once(self) -> int:
        """Copies every pending table from one snapshot; returns how many were finished. Raises
        SourceUnavailable when the connection is lost, and when the server has no slot to spare.
        """
        wanted = self.pending
        self._locked = {table_id: pause for table_id, pause in self._locked.items() if table_id in wanted}
        jobs = (
            self._jobs([table_id for table_id in wanted if table_id not in self._locked or self._locked[table_id].over])
            if self._slot.over
            else []
        )
        if not jobs:
            return 0
        self.progress = CopyProgress(
            tables_total=len(jobs), waiting={job.facts.qualified_name: job.facts.estimated_rows for job in jobs}
        )
        self._logger.info("taking a snapshot to copy from", tables=len(jobs))
        with closing(self._snapshot(jobs)) as holder:
            self._logger.info("snapshot taken", snapshot_lsn=show(holder.consistent_lsn))
            return sum(self._copy(job, holder) for job in jobs if not self._stop.is_set())

    def _jobs(self, table_ids: Sequence[str]) -> list[_Job]:
        """What can be copied, and under which facts. Tables that were locked come last: they may be
        so again.
        """
        if not table_ids:
            return []
        with closing(open_query(self._options)) as connection:
            catalog = Catalog(connection)
            found = {
                table_id: catalog.table(int(table_id), publication=self._options.publication) for table_id in table_ids
            }
        jobs = []
        for table_id, facts in sorted(found.items(), key=lambda item: item[0] in self._locked):
            if facts is None:
                self._book.detach(int(table_id), "dropped at the source before it was copied")
            elif (schema := self._book.prepare_copy(facts)) is not None:
                jobs.append(_Job(facts, schema, self._book.states()[table_id].generation))
        return jobs

    def _snapshot(self, jobs: Sequence[_Job]) -> SnapshotHolder:
        waiting = Waiting(report=self._report_blockers, cancelled=self._stop.is_set)
        try:
            holder = SnapshotHolder.open(self._options, waiting=waiting)
        except NoFreeSlot as error:
            self._slot.again()
            for job in jobs:
                self._book.note_wait(job.facts.oid, f"{error}; {error.hint}")
            raise SourceUnavailable(f"copies wait for a replication slot: {error}", hint=error.hint) from error
        self._slot = _Pause()
        return holder

    def _report_blockers(self, blockers: Sequence[Blocker]) -> None:
        self._logger.warning(
            "the snapshot waits for older transactions to end",
            processes=[one.pid for one in blockers if one.pid],
            prepared=sum(not one.pid for one in blockers),
        )

    def _copy(self, job: _Job, holder: SnapshotHolder) -> int:
        facts, schema = job.facts, job.schema
        name, table_id = schema.qualified_name, schema.table_id
        self.progress.begin(name, estimated_rows=facts.estimated_rows)
        self._logger.info("copy started", table=name, generation=job.generation, estimated_rows=facts.estimated_rows)
        try:
            segments = list(self._read(facts, schema, holder))
        except SnapshotRaced as error:
            self._raced.add(facts.oid)
            self._logger.warning(
                "the table changed while it was copied, a new snapshot follows", table=name, reason=str(error)
            )
            return 0
        except TableLocked as error:
            self._locked.setdefault(table_id, _Pause()).again()
            self._book.note_wait(facts.oid, str(error))
            self._logger.warning("the table is copied later", table=name, reason=str(error))
            return 0
        except TableRefused as error:
            self._book.quarantine(facts, f"{error}{'; ' if error.hint else ''}{error.hint}", generation=job.generation)
            return 0
        except UnsupportedChange as error:
            self._book.mark_stale(facts.oid, str(error), lsn=holder.consistent_lsn, generation=job.generation)
            return 0
        files = tuple(future.result() for future in segments)
        faults.point("copy.taken")
        if not self._unchanged(job):
            return 0
        seen = fingerprint(facts)
        entry = Copy(
            table_id,
            job.generation,
            schema.version,
            holder.consistent_lsn,
            files,
            final=True,
            relfilenode=facts.relfilenode,
            fingerprint=seen,
        )
        faults.point("copy.final.before")
        if not self._book.finish_copy(entry):
            self._logger.warning(
                "the copy is not published: the table has moved on meanwhile", table=name, generation=job.generation
            )
            return 0
        faults.point("copy.final.after")
        self.progress.tables_done += 1
        self.totals.table_seconds.add(time.monotonic() - self.progress.table_started_at)
        self._logger.info(
            "copy finished", table=name, rows=sum(file.rows for file in files), snapshot_lsn=show(holder.consistent_lsn)
        )
        return 1

    def _unchanged(self, job: _Job) -> bool:
        """Whether the rows just read are worth publishing: nothing that only the catalog shows has
        happened since before the snapshot.

        A source that cannot be asked now does not spoil the copy: the entry carries the facts, and
        the next look of the catalog watch compares with them.
        """
        facts, now = job.facts, job.facts
        with suppress(SourceUnavailable), closing(open_query(self._options)) as connection:
            found = Catalog(connection).table(facts.oid, publication=self._options.publication)
            if found is None:
                self._book.detach(facts.oid, "dropped at the source before its copy was published")
                return False
            now = found
        reason = compare(facts.relfilenode, fingerprint(facts), now)
        if reason:
            self._book.copy_again(now, generation=job.generation, reason=reason)
        return not reason

    def _read(self, facts: TableFacts, schema: TableSchema, holder: SnapshotHolder) -> Iterator["Future[Segment]"]:
        reader = CopyRows(len(schema.columns))
        writer = SegmentWriter(schema)
        ordinal = received = 0
        shown = time.monotonic()
        now_us = time.time_ns() // 1000
        for chunks in copy_table(
            self._options,
            schema=schema,
            facts=facts,
            snapshot=holder.snapshot_name,
            accept_empty=facts.oid in self._raced,
        ):
            if self._stop.is_set():
                raise SourceUnavailable(
                    f"the copy of {schema.qualified_name} was stopped", hint="it begins again at the next start"
                )
            faults.point("copy.read")
            taken = sum(map(len, chunks))
            encoded = _encode(
                reader.feed(chunks, emptied=True), schema, lsn=holder.consistent_lsn, ordinal=ordinal, time_us=now_us
            )
            chunks.clear()
            count = encoded[0].stats.rows if encoded else 0
            if encoded and encoded[0].large:
                yield self._store(schema, write_large(encoded))
            elif encoded:
                writer.append(encoded.popleft())
            ordinal += count
            received += taken
            self.progress.rows, self.progress.bytes = ordinal, received
            self.totals.rows, self.totals.bytes, self.totals.beat = (
                self.totals.rows + count,
                self.totals.bytes + taken,
                time.time(),
            )
            if writer.nbytes >= SEGMENT_BYTES:
                yield self._finish(writer, schema)
                writer = SegmentWriter(schema)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                self._logger.info(
                    "copying", table=schema.qualified_name, rows=ordinal, estimated_rows=facts.estimated_rows
                )
        reader.close()
        if writer.nbytes:
            yield self._finish(writer, schema)

    def _finish(self, writer: SegmentWriter, schema: TableSchema) -> "Future[Segment]":
        return self._store(schema, writer.finish())

    def _store(self, schema: TableSchema, file: SegmentFile) -> "Future[Segment]":
        key = keys.segment(schema.table_id, self._log.state.epoch, next(self._numbers))
        return self._committer.upload(key, schema, file)


def _encode(rows: RowColumns, schema: TableSchema, *, lsn: int, ordinal: int, time_us: int) -> deque[EncodedRows]:
    """The rows, if there are any; nothing else holds them or what they came in."""
    count = len(rows.op)
    if not count:
        return deque()
    encoded = encode_rows(
        rows,
        schema,
        ordinal=np.arange(ordinal, ordinal + count),
        xid=np.zeros(count, np.int64),
        lsn=np.full(count, lsn, np.int64),
        commit_time_us=np.full(count, time_us, np.int64),
    )
    return deque([encoded])
