"""Initial rows: tables in state `snapshot` are read from an exported snapshot while their changes
already flow.

Invariant: a generation's copy is published only whole, and only if the snapshot provably shows the
table as it was (lock, then relfilenode as before the slot). The rows are as of `snapshot_lsn`;
every commit after it reaches the table through the stream, because the table was recorded in the
manifest before the snapshot was taken. One entry publishes a snapshot, makes the table live and carries
the facts that were read before the snapshot. What changed during the snapshot is looked for before the
entry, and whatever changes between that look and the entry is found by the catalog watch, which
compares with the facts of the entry. A table that cannot be read, or is locked, never holds up the
others. Runs in a thread of its own, with connections of its own.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import structlog

from sluice import faults
from sluice.backoff import RetryTime
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.errors import SourceUnavailable, UnsupportedChange
from sluice.ingest.snapshot.reader import SnapshotRaced, TableLocked, TableRefused
from sluice.ingest.snapshot.segments import SnapshotSegments
from sluice.ingest.status import SnapshotCounts, SnapshotProgress
from sluice.ingest.tables.book import TableBook
from sluice.ingest.tables.catalog_diff import compare, fingerprint
from sluice.lsn import show
from sluice.source.catalog import Catalog
from sluice.source.sessions import NoFreeSlot, SourceOptions, open_query
from sluice.source.snapshot_export import Blocker, SnapshotHolder, Waiting

WAIT_SECONDS = (5.0, 10.0, 30.0)
"""Pauses before a locked table is tried again, and before another slot is asked for; the last one
repeats. Each try costs the source a snapshot.
"""


@dataclass(frozen=True, slots=True)
class _Job:
    """One table to be read: its facts from before the snapshot, and the generation and shape that
    they began or agree with.
    """

    facts: TableFacts
    schema: TableSchema
    generation: int


class Snapshotter:
    """Copies whatever the book says is `snapshot`. `run_once` is called again and again until
    nothing is left.
    """

    def __init__(
        self,
        options: SourceOptions,
        book: TableBook,
        segments: SnapshotSegments,
        *,
        counts: SnapshotCounts,
        stop: threading.Event,
    ) -> None:
        self._options = options
        self._book = book
        self._segments = segments
        self._counts = counts
        self._stop = stop
        self._raced: set[int] = set()
        self._locked: dict[str, RetryTime] = {}
        self._slot = RetryTime(WAIT_SECONDS)
        self._logger = structlog.get_logger("snapshot")

    @property
    def pending(self) -> list[str]:
        """Table ids that wait for their rows."""
        return [table.table_id for table in self._book.states().values() if table.state == State.SNAPSHOT]

    def run_once(self) -> int:
        """Copies every pending table from one snapshot; returns how many were finished. Raises
        SourceUnavailable when the connection is lost, and when the server has no slot to spare.
        """
        wanted, now = self.pending, time.monotonic()
        self._locked = {table_id: retry for table_id, retry in self._locked.items() if table_id in wanted}
        due = [table_id for table_id in wanted if table_id not in self._locked or self._locked[table_id].due(now)]
        jobs = self._jobs(due) if self._slot.due(now) else []
        if not jobs:
            return 0
        self._counts.progress = SnapshotProgress(
            tables_total=len(jobs), waiting={job.facts.qualified_name: job.facts.estimated_rows for job in jobs}
        )
        self._logger.info("taking a snapshot to read from", tables=len(jobs))
        with closing(self._snapshot(jobs)) as holder:
            self._logger.info("snapshot taken", snapshot_lsn=show(holder.consistent_lsn))
            return sum(self._resync(job, holder) for job in jobs if not self._stop.is_set())

    def _jobs(self, table_ids: Sequence[str]) -> list[_Job]:
        """What can be read, and under which facts. Tables that were locked come last: they may be
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
                self._book.detach(int(table_id), "dropped at the source before its snapshot was taken")
            elif (schema := self._book.prepare_snapshot(facts)) is not None:
                jobs.append(_Job(facts, schema, self._book.states()[table_id].generation))
        return jobs

    def _snapshot(self, jobs: Sequence[_Job]) -> SnapshotHolder:
        waiting = Waiting(report=self._report_blockers, cancelled=self._stop.is_set)
        try:
            holder = SnapshotHolder.open(self._options, waiting=waiting)
        except NoFreeSlot as error:
            self._slot.failed(time.monotonic())
            for job in jobs:
                self._book.note_wait(job.facts.oid, f"{error}; {error.hint}")
            raise SourceUnavailable(f"snapshots wait for a replication slot: {error}", hint=error.hint) from error
        self._slot = RetryTime(WAIT_SECONDS)
        return holder

    def _report_blockers(self, blockers: Sequence[Blocker]) -> None:
        self._logger.warning(
            "the snapshot waits for older transactions to end",
            processes=[one.pid for one in blockers if one.pid],
            prepared=sum(not one.pid for one in blockers),
        )

    def _resync(self, job: _Job, holder: SnapshotHolder) -> int:
        facts, schema = job.facts, job.schema
        name, table_id = schema.qualified_name, schema.table_id
        self._counts.progress.begin(name, estimated_rows=facts.estimated_rows)
        self._logger.info(
            "snapshot started", table=name, generation=job.generation, estimated_rows=facts.estimated_rows
        )
        try:
            segments = list(self._segments.read(facts, schema, holder, accept_empty=facts.oid in self._raced))
        except SnapshotRaced as error:
            self._raced.add(facts.oid)
            self._logger.warning(
                "the table changed while it was read, a new snapshot follows", table=name, reason=str(error)
            )
            return 0
        except TableLocked as error:
            self._locked.setdefault(table_id, RetryTime(WAIT_SECONDS)).failed(time.monotonic())
            self._book.note_wait(facts.oid, str(error))
            self._logger.warning("the table is read later", table=name, reason=str(error))
            return 0
        except TableRefused as error:
            self._book.quarantine(facts, f"{error}{'; ' if error.hint else ''}{error.hint}", generation=job.generation)
            return 0
        except UnsupportedChange as error:
            self._book.mark_stale(facts.oid, str(error), lsn=holder.consistent_lsn, generation=job.generation)
            return 0
        files = tuple(future.result() for future in segments)
        faults.point("snapshot.taken")
        if not self._unchanged(job):
            return 0
        seen = fingerprint(facts)
        entry = Snapshot(
            table_id,
            job.generation,
            schema.version,
            holder.consistent_lsn,
            files,
            final=True,
            relfilenode=facts.relfilenode,
            fingerprint=seen,
        )
        faults.point("snapshot.final.before")
        if not self._book.finish_snapshot(entry):
            self._logger.warning(
                "the snapshot is not published: the table has moved on meanwhile", table=name, generation=job.generation
            )
            return 0
        faults.point("snapshot.final.after")
        progress = self._counts.progress
        progress.tables_done += 1
        self._counts.table_seconds.add(time.monotonic() - progress.table_started_at)
        self._logger.info(
            "snapshot finished",
            table=name,
            rows=sum(file.rows for file in files),
            snapshot_lsn=show(holder.consistent_lsn),
        )
        return 1

    def _unchanged(self, job: _Job) -> bool:
        """Whether the rows just read are worth publishing: nothing that only the catalog shows has
        happened since before the snapshot.

        A source that cannot be asked now does not spoil the snapshot: the entry carries the facts, and
        the next look of the catalog watch compares with them.
        """
        facts, now = job.facts, job.facts
        with suppress(SourceUnavailable), closing(open_query(self._options)) as connection:
            found = Catalog(connection).table(facts.oid, publication=self._options.publication)
            if found is None:
                self._book.detach(facts.oid, "dropped at the source before its snapshot was published")
                return False
            now = found
        reason = compare(facts.relfilenode, fingerprint(facts), now)
        if reason:
            self._book.begin_again(now, generation=job.generation, reason=reason)
        return not reason
