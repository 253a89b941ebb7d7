"""Initial rows: tables in state `snapshot` are read from an exported snapshot while their changes
already flow.

Invariant: a generation becomes live only whole, and only if the snapshot provably shows the
table as it was (lock, then relfilenode as before the slot). Each chunk is as of its own snapshot;
every commit after the first one reaches the table through the stream, because the table was recorded
in the manifest before the snapshot was taken. A round that ends early costs the chunks that were under
way: the next one reads the rest from a snapshot of its own, and `contract.chunks` says why that is
exact, and when it is not. Then the generation begins again, by name. The last entry makes the table
live and carries the facts from before the first snapshot: what changes after the look before it is
found by the catalog watch, which compares with them. A table that cannot be read, or is locked, never
holds up the others. Runs in a thread of its own, with connections of its own.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import structlog

from sluice import faults
from sluice.backoff import RetryTime
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot
from sluice.contract.reasons import DROPPED
from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State
from sluice.errors import NoFreeConnection, SourceUnavailable
from sluice.ingest.snapshot.chunk_round import ChunkRound, Job, SnapshotLimits
from sluice.ingest.snapshot.segments import SnapshotSegments
from sluice.ingest.status import SnapshotCounts, SnapshotProgress
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.lsn import show
from sluice.manifest.snapshot_state import SnapshotState
from sluice.manifest.values import TableState
from sluice.source.catalog import Catalog
from sluice.source.sessions import KnownSource, NoFreeSlot, open_query
from sluice.source.snapshot_export import SnapshotHolder, Waiting, waited_for
from sluice.tables import events
from sluice.tables.catalog_diff import Unseen, compare

FAR = (1 << 64) - 1
"""A position behind every change that is known."""
WAIT_SECONDS = (5.0, 10.0, 30.0)
"""Pauses before a table that could not be read is tried again, and before another slot is asked for; the last one
repeats. Each try costs the source a snapshot.
"""
_SNAPSHOT, _LOCKS = "the snapshot to read from", "snapshots of locked tables"
"""What waits."""
_RESHAPED = "the table's columns changed since a chunk of it was read"
_NAMED = 3


class Snapshotter:
    """Reads every table in state `snapshot`. `run_once` is called again and again until
    nothing is left.
    """

    def __init__(
        self,
        options: KnownSource,
        tables: FollowedTables,
        segments: SnapshotSegments,
        *,
        counts: SnapshotCounts,
        stop: threading.Event,
        limits: SnapshotLimits,
    ) -> None:
        self._options = options
        self._tables = tables
        self._segments = segments
        self._counts = counts
        self._stop = stop
        self._limits = limits
        self._raced: set[int] = set()
        self._later: dict[str, RetryTime] = {}
        self._failing: set[str] = set()
        """Those of them that no lock keeps from being read: their states say what does."""
        self._slot = RetryTime(WAIT_SECONDS)
        self._logger = structlog.get_logger("snapshot")

    @property
    def pending(self) -> list[str]:
        """Table ids that wait for their rows."""
        return [table.table_id for table in self._tables.states().values() if table.state == State.SNAPSHOT]

    def configure(self, limits: SnapshotLimits) -> None:
        """From now on their `load` holds; a snapshot that is held is bounded as it was. From any thread."""
        self._limits = replace(self._limits, load=limits.load)
        self._segments.gate.limit(limits.load)

    def close(self) -> None:
        """Closes the session at the source. Who waited for locks or for a slot does not any more; a source that
        was loaded counts as loaded until it is looked at again.
        """
        self._end_waits()
        self._segments.gate.close()

    def run_once(self) -> int:
        """Reads what every pending table lacks from one snapshot; returns how many were finished. None is
        taken while the source is loaded. Raises
        SourceUnavailable when the connection is lost, and when the server has no slot or connection to spare.
        """
        try:
            return self._run_once()
        except NoFreeConnection as error:
            for table_id in self.pending:
                self._tables.decide(events.SnapshotDelayed(int(table_id), f"{error}; {error.hint}"))
            raise

    def _run_once(self) -> int:
        finished = self._finish_joined()
        wanted, now = self.pending, time.monotonic()
        self._later = {table_id: retry for table_id, retry in self._later.items() if table_id in wanted}
        self._say_locked(now)
        due = [
            table_id
            for table_id in wanted
            if (table_id not in self._later or self._later[table_id].due(now)) and not self._is_complete(table_id)
        ]
        jobs = self._jobs(due) if due and self._slot.due(now) and self._segments.gate.is_open() else []
        if not jobs:
            return finished
        self._counts.progress = SnapshotProgress(
            tables_total=len(jobs), waiting={job.name: job.facts.estimated_rows for job in jobs}
        )
        self._logger.info("taking a snapshot to read from", tables=len(jobs))
        with closing(self._snapshot(jobs)) as holder:
            self._logger.info("snapshot taken", snapshot_lsn=show(holder.consistent_lsn))
            result = ChunkRound(
                self._options,
                self._tables,
                self._segments,
                snapshot=holder.snapshot_name,
                lsn=holder.consistent_lsn,
                counts=self._counts,
                stop=self._stop,
                limits=self._limits,
                raced=frozenset(self._raced),
            ).run(jobs)
        self._raced |= result.raced
        for table_id in result.locked | result.failing:
            self._later.setdefault(table_id, RetryTime(WAIT_SECONDS)).failed(time.monotonic())
        self._failing = self._failing - result.locked | result.failing
        self._say_locked(time.monotonic())
        return finished + result.finished

    def rest(self) -> None:
        """Nothing is to be read: what was waited for before is not waited for any more."""
        self._end_waits()
        self._segments.gate.rest()

    def _end_waits(self) -> None:
        self._counts.waits.end(_SNAPSHOT)
        self._counts.waits.end(_LOCKS)

    def _say_locked(self, now: float) -> None:
        """Which tables wait for locks of other sessions, and when the next of them is tried."""
        states = self._tables.states()
        locked = self._later.keys() - self._failing
        tables = [states[table_id] for table_id in locked if table_id in states]
        if not tables:
            self._counts.waits.end(_LOCKS)
            return
        names = sorted(table.source_name for table in tables)
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        left = min(self._later[table_id].left(now) for table_id in locked)
        reason = f"locks of other sessions on {', '.join(names[:_NAMED])}{more}"
        self._counts.waits.say(_LOCKS, reason, retry_seconds=left)

    def _is_complete(self, table_id: str) -> bool:
        snapshot = self._tables.states()[table_id].snapshot
        return snapshot is not None and snapshot.complete

    def _jobs(self, table_ids: Sequence[str]) -> list[Job]:
        """What can be read, and under which facts. Tables that could not be read come last: it may
        be so again.
        """
        found = self._facts(table_ids)
        jobs = []
        for table_id in sorted(table_ids, key=lambda table_id: table_id in self._later):
            facts, state = found.get(table_id), self._tables.states()[table_id]
            if facts is None:
                self._tables.decide(events.TableGone(int(table_id), DROPPED))
                continue
            before = state.snapshot
            if before is not None and (why := cannot_go_on(facts, state, before)):
                self._tables.decide(events.SnapshotSpoiled(facts, why, state.generation))
                before = None
            if (schema := self._tables.decide(events.SnapshotDue(facts))) is not None:
                state = self._tables.states()[table_id]
                jobs.append(Job(facts, schema, state.generation, state.snapshot))
        return jobs

    def _facts(self, table_ids: Sequence[str]) -> dict[str, TableFacts]:
        if not table_ids:
            return {}
        with closing(open_query(self._options)) as connection:
            oids = [int(table_id) for table_id in table_ids]
            tables = Catalog(connection).tables(oids, publication=self._options.publication)
        return {str(table.oid): table for table in tables}

    def _finish_joined(self) -> int:
        """Ends snapshots of which every block was read, at several moments: once the spool has the
        changes up to the last of them, and if nothing keeps the chunks from being joined.
        """
        due: dict[str, TableState] = {}
        for table_id in self.pending:
            state = self._tables.states()[table_id]
            snapshot = state.snapshot
            if snapshot is not None and snapshot.complete and snapshot.snapshot_lsn <= self._tables.through_lsn:
                due[table_id] = state
        found = self._facts(list(due))
        finished = 0
        for table_id, state in due.items():
            facts, snapshot = found.get(table_id), state.snapshot
            assert snapshot is not None
            if facts is None:
                self._tables.decide(events.TableGone(int(table_id), DROPPED))
                continue
            if (why := cannot_end(facts, state, snapshot)) is not None:
                self._tables.decide(events.SnapshotSpoiled(facts, why, state.generation))
                continue
            faults.point("snapshot.final.before")
            if self._tables.publish_snapshot(end_of(state, snapshot)):
                faults.point("snapshot.final.after")
                finished += 1
                self._logger.info(
                    "snapshot finished",
                    table=facts.qualified_name,
                    rows=snapshot.rows,
                    snapshot_lsn=show(snapshot.snapshot_lsn),
                )
        return finished

    def _snapshot(self, jobs: Sequence[Job]) -> SnapshotHolder:
        waiting = Waiting(
            report=lambda blockers: self._counts.waits.say(_SNAPSHOT, waited_for(blockers)), cancelled=self._stop.is_set
        )
        try:
            with self._counts.waits.ended(_SNAPSHOT):
                holder = SnapshotHolder.open(self._options, waiting=waiting, hold_s=self._limits.session_s)
        except NoFreeSlot as error:
            now = time.monotonic()
            self._slot.failed(now)
            self._counts.waits.say(_SNAPSHOT, str(error), retry_seconds=self._slot.left(now))
            for job in jobs:
                self._tables.decide(events.SnapshotDelayed(job.facts.oid, f"{error}; {error.hint}"))
            raise SourceUnavailable(f"snapshots wait for a replication slot: {error}", hint=error.hint) from error
        self._slot = RetryTime(WAIT_SECONDS)
        return holder


def cannot_end(facts: TableFacts, state: TableState, snapshot: SnapshotState) -> Unseen | None:
    """Why a table of which every block was read, at several moments, is not the table as of one; None when it is."""
    not_joined = snapshot.not_joined(snapshot.snapshot_lsn) or _reshaped(state, snapshot)
    unseen = compare(snapshot.relfilenode, snapshot.fingerprint, facts)
    return unseen or (Unseen(Cause.INTERRUPTED, not_joined) if not_joined else None)


def end_of(state: TableState, snapshot: SnapshotState) -> Snapshot:
    """The entry behind the last chunk of a table that was read at several moments."""
    return Snapshot(
        state.table_id,
        state.generation,
        snapshot.schema_version,
        snapshot.snapshot_lsn,
        (),
        final=True,
        relfilenode=snapshot.relfilenode,
        fingerprint=snapshot.fingerprint,
    )


def cannot_go_on(facts: TableFacts, state: TableState, before: SnapshotState) -> Unseen | None:
    """Why what is left of a table cannot be read at another moment than what was read of it; None when
    it can.
    """
    unseen = compare(before.relfilenode, before.fingerprint, facts)
    if unseen is not None:
        return unseen
    # Of a partitioned table each leaf was compared, and one that was created since has all its rows in the stream.
    if facts.relkind != "p" and facts.relfilenode != before.relfilenode:
        return Unseen(Cause.INTERRUPTED, "the table was rewritten or truncated since a chunk of it was read")
    if before.schema_version != state.schema_version:
        return Unseen(Cause.INTERRUPTED, _RESHAPED)
    not_joined = before.not_joined(FAR) if before.relations else "the chunks do not say which rows they have"
    return Unseen(Cause.INTERRUPTED, not_joined) if not_joined else None


def _reshaped(state: TableState, snapshot: SnapshotState) -> str:
    """Why chunks of several moments cannot be joined by the changes from between them: those name rows in
    another way, though the catalog had nothing of it when the next chunk was read. Empty when they can.
    """
    began = (lsn for version, lsn in state.schema_lsns.items() if version > snapshot.schema_version)
    is_one_moment = snapshot.first_lsn == snapshot.snapshot_lsn
    return _RESHAPED if not is_one_moment and any(lsn < snapshot.snapshot_lsn for lsn in began) else ""
