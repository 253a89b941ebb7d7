"""One round: tables, and what is left of tables, read from one exported snapshot by several threads.

Invariant: a chunk is published only after all of its files are durable, and only while its table is in
the generation that the chunk was read for. The last chunk of a table that was read at one moment is
published as final, once nothing that only the catalog shows has happened since before the snapshot. What
is wrong with one table never keeps the others from being read; what is wrong with the connection
ends the round, and the next one goes on with the chunks that are missing. So it does when the source has
been loaded for too long to hold the snapshot.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field

import structlog

from sluice import faults
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.chunks import BLOCK_BYTES, BlockRange, remaining
from sluice.contract.entries import Segment, Snapshot
from sluice.contract.reasons import DROPPED
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.errors import SourceUnavailable, UnsupportedChange
from sluice.ingest.snapshot.load_gate import LoadLimits
from sluice.ingest.snapshot.reader import (
    BATCH_BYTES,
    SnapshotRaced,
    SnapshotSession,
    TableLater,
    TableLocked,
    TableRefused,
)
from sluice.ingest.snapshot.segments import SnapshotSegments
from sluice.ingest.status import SnapshotCounts
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.lsn import show
from sluice.manifest.snapshot_state import SnapshotState
from sluice.source.catalog import Catalog
from sluice.source.sessions import KnownSource, open_query
from sluice.tables import events
from sluice.tables.catalog_diff import Unseen, compare, fingerprint

GROUP = 50
"""Tables that are locked and compared together, partitions among them: what a small table costs is asking about it,
and the room that a server has for locks is for all its sessions.
"""
SMALL_BLOCKS = 128
"""Up to this many blocks a table is read with its group; a larger one waits for its own turn."""
LOCK_TRIES = 10
"""How often a chunk of a table is tried whose others were read, LOCK_WAIT_S each."""

_GRACE_SECONDS = 10.0
_ROW_BYTES = 10
"""The least that a row takes in a COPY."""

Wrong = SnapshotRaced | TableLater | TableRefused | UnsupportedChange
_WRONG = (SnapshotRaced, TableLater, TableRefused, UnsupportedChange)


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """`connections` read at a time. A table is cut into chunks of about `chunk_bytes`; all together
    read at most `rows_per_second` (0: as fast as they come), and no chunk while the source is above `load`.
    """

    connections: int = 2
    chunk_bytes: int = 256 << 20
    rows_per_second: int = 0
    load: LoadLimits = field(default_factory=LoadLimits)

    @property
    def session_s(self) -> float:
        """For how long a session that holds a snapshot or a lock may stand still. Longer than any pause of ours:
        that of one wait for the load, and that which the limit of rows makes behind one batch.
        """
        batch_s = self.connections * BATCH_BYTES / _ROW_BYTES / self.rows_per_second if self.rows_per_second else 0.0
        return self.load.hold_s + _GRACE_SECONDS + batch_s


@dataclass(slots=True, eq=False)
class Job:
    """A table to be read: its facts from before the snapshot, and the generation and shape that they
    began or agree with. `before` is what earlier rounds have read of this generation.
    """

    facts: TableFacts
    schema: TableSchema
    generation: int
    before: SnapshotState | None = None
    relations: tuple[str, ...] = ()
    to_come: int = 0
    """Chunks that are not published yet, once it was cut."""
    ended: bool = False

    @property
    def name(self) -> str:
        return self.schema.qualified_name


@dataclass(slots=True, eq=False)
class _Chunk:
    """Blocks of a table that become one entry; None for a table that is one entry as a whole."""

    job: Job
    ranges: tuple[BlockRange | None, ...]
    tries: int = 0


@dataclass(slots=True)
class RoundResult:
    """What became of the tables of a round; those in no set are read on in the next one."""

    finished: int = 0
    raced: set[int] = field(default_factory=set)
    locked: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)


class _LeftEarly(Exception):
    """The session was closed because of one table: what else it held must be taken again."""


class ChunkRound:
    """Reads from the exported snapshot `snapshot`, which shows the source as of `lsn`."""

    def __init__(
        self,
        options: KnownSource,
        tables: FollowedTables,
        segments: SnapshotSegments,
        *,
        snapshot: str,
        lsn: int,
        counts: SnapshotCounts,
        stop: threading.Event,
        limits: SnapshotLimits,
        raced: frozenset[int],
    ) -> None:
        """`raced` are oids of tables that may be empty although the server expects rows."""
        self._options = options
        self._tables = tables
        self._segments = segments
        self._snapshot = snapshot
        self._lsn = lsn
        self._counts = counts
        self._stop = stop
        self._limits = limits
        self._raced = raced
        self._tasks: deque[_Chunk | list[Job]] = deque()
        self._running = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._released = False
        self._result = RoundResult()
        self._logger = structlog.get_logger("snapshot")

    def run(self, jobs: Sequence[Job]) -> RoundResult:
        """Returns when each table was read, or is left for another round. Raises SourceUnavailable, and
        whatever else ends a thread.
        """
        self._tasks.extend(groups(jobs))
        threads = self._limits.connections
        with ThreadPoolExecutor(threads, thread_name_prefix="snapshot") as pool:
            ended = [pool.submit(self._work) for _ in range(threads)]
        if self._error is not None:
            raise self._error
        for one in ended:
            one.result()
        return self._result

    # threads

    def _work(self) -> None:
        with closing(SnapshotSession(self._options, self._snapshot, hold_s=self._limits.session_s)) as session:
            while (task := self._next()) is not None:
                try:
                    if not self._segments.gate.wait():
                        self._released = True
                    elif isinstance(task, _Chunk):
                        self._take_chunk(session, task)
                    else:
                        self._take_group(session, task)
                except BaseException as error:  # noqa: BLE001 - raised by `run`
                    self._error = self._error or error
                finally:
                    with self._changed:
                        self._running -= 1
                        self._changed.notify_all()

    def _next(self) -> "_Chunk | list[Job] | None":
        """The next task; None when there will be none any more."""
        with self._changed:
            while not self._tasks and self._running and self._error is None:
                self._changed.wait()
            if not self._tasks or self._error is not None or self._released or self._stop.is_set():
                return None
            self._running += 1
            return self._tasks.popleft()

    def _later(self, tasks: "Sequence[_Chunk | list[Job]]", *, first: bool = False) -> None:
        with self._changed:
            if first:
                self._tasks.extendleft(reversed(tasks))
            else:
                self._tasks.extend(tasks)
            self._changed.notify_all()

    # tables

    def _take_group(self, session: SnapshotSession, jobs: list[Job]) -> None:
        """Cuts tables that are larger, and reads the others."""
        read: list[tuple[Job, Snapshot]] = []
        with suppress(_LeftEarly), session.locked([job.facts for job in jobs]) as wrong:
            for job in jobs:
                if job.facts.oid in wrong:
                    self._wrong(job, wrong[job.facts.oid])
            good = [job for job in jobs if job.facts.oid not in wrong]
            small = self._cut(good, session.blocks([job.facts for job in good]))
            while small:
                chunk = small.pop(0)
                if (entry := self._read(session, chunk)) is None:
                    self._later([[one.job for one in small]] if small else [], first=True)
                    raise _LeftEarly
                read.append((chunk.job, entry))
        self._publish(read)

    def _take_chunk(self, session: SnapshotSession, chunk: _Chunk) -> None:
        job, entry = chunk.job, None
        if job.ended:
            return
        with suppress(_LeftEarly), session.locked([job.facts]) as wrong:
            error = wrong.get(job.facts.oid)
            chunk.tries += 1
            if isinstance(error, TableLocked) and job.relations and chunk.tries < LOCK_TRIES:
                self._later([chunk])
            elif error is not None:
                self._wrong(job, error)
            elif (entry := self._read(session, chunk)) is None:
                raise _LeftEarly
        if entry is not None:
            self._publish([(job, entry)])

    def _cut(self, jobs: Sequence[Job], blocks: dict[str, int]) -> list[_Chunk]:
        """The chunks of tables that are to be read with their group; those of all others are put into the
        line, in front.
        """
        small: list[_Chunk] = []
        large: list[_Chunk] = []
        for job in jobs:
            chunks = self._chunks_of(job, blocks)
            job.to_come = len(chunks)
            size = sum(blocks.get(oid, 0) for oid in _relations(job.facts, blocks))
            (small if len(chunks) == 1 and not job.relations and size <= SMALL_BLOCKS else large).extend(chunks)
        self._later(large, first=True)
        return small

    def _chunks_of(self, job: Job, blocks: dict[str, int]) -> list[_Chunk]:
        size = max(1, self._limits.chunk_bytes // BLOCK_BYTES)
        done = job.before.done if job.before is not None else ()
        job.relations = job.before.relations if job.before is not None else _relations(job.facts, blocks)
        if job.before is None and sum(blocks.get(oid, 0) for oid in job.relations) <= size:
            job.relations = ()
            return [_Chunk(job, (None,))]
        chunks: list[_Chunk] = []
        blocks_left = 0
        for one in remaining(job.relations, done, blocks, size=size):
            length = (one.end or max(one.first, blocks.get(one.relation, 0))) - one.first
            if blocks_left < length or not chunks:
                chunks.append(_Chunk(job, ()))
                blocks_left = size
            chunks[-1].ranges += (one,)
            blocks_left -= length
        return chunks

    def _read(self, session: SnapshotSession, chunk: _Chunk) -> Snapshot | None:
        """The entry of a chunk whose files are stored. None when something is wrong with the table."""
        job = chunk.job
        before = job.before.rows if job.before is not None else 0
        self._counts.begin(job.name, estimated_rows=job.facts.estimated_rows, rows_before=before)
        try:
            segments = list(
                self._segments.read(
                    session,
                    job.facts,
                    job.schema,
                    lsn=self._lsn,
                    ranges=chunk.ranges,
                    relations=job.relations,
                    accept_empty=job.facts.oid in self._raced,
                )
            )
        except _WRONG as error:
            self._wrong(job, error)
            return None
        return self._entry(job, chunk, tuple(future.result() for future in segments))

    def _entry(self, job: Job, chunk: _Chunk, files: tuple[Segment, ...]) -> Snapshot:
        return Snapshot(
            job.schema.table_id,
            job.generation,
            job.schema.version,
            self._lsn,
            files,
            final=not job.relations,
            relfilenode=job.facts.relfilenode,
            fingerprint=fingerprint(job.facts),
            relations=job.relations,
            ranges=tuple(one for one in chunk.ranges if one is not None),
        )

    # entries

    def _publish(self, read: "list[tuple[Job, Snapshot]]") -> None:
        """Publishes what was read, and ends the snapshots of tables that are whole now."""
        final = [(job, entry) for job, entry in read if entry.final]
        for job, entry in read:
            if entry.final:
                continue
            faults.point("snapshot.chunk.before")
            if not self._tables.publish_snapshot(entry):
                self._moved_on(job)
                continue
            faults.point("snapshot.chunk.after")
            with self._changed:
                job.to_come -= 1
                is_last = not job.to_come and not job.ended
            if is_last and (job.before is None or job.before.first_lsn == self._lsn):
                final.append((job, _end_of(job, entry)))
            elif is_last:
                # Changes up to this moment belong to it, and the stream may be behind.
                self._leave(job, done=False)
        if final:
            self._finish(final)

    def _finish(self, final: "list[tuple[Job, Snapshot]]") -> None:
        faults.point("snapshot.taken")
        changed = self._changed_tables([job for job, _ in final])
        for job, entry in final:
            if job.facts.oid in changed:
                self._leave(job, done=False)
                continue
            faults.point("snapshot.final.before")
            if not self._tables.publish_snapshot(entry):
                self._moved_on(job)
                continue
            faults.point("snapshot.final.after")
            self._leave(job, done=True)
            state = self._tables.states()[job.schema.table_id].snapshot
            self._logger.info(
                "snapshot finished", table=job.name, rows=state.rows if state else 0, snapshot_lsn=show(self._lsn)
            )

    def _changed_tables(self, jobs: Sequence[Job]) -> set[int]:
        """Tables whose rows are not worth publishing: something that only the catalog shows has happened
        since before the snapshot. They begin again.

        A source that cannot be asked now does not spoil a snapshot: the entry carries the facts, and
        the next look of the catalog watch compares with them.
        """
        found: dict[int, TableFacts] | None = None
        with suppress(SourceUnavailable), closing(open_query(self._options)) as connection:
            oids = [job.facts.oid for job in jobs]
            tables = Catalog(connection).tables(oids, publication=self._options.publication)
            found = {table.oid: table for table in tables}
        changed: set[int] = set()
        for job in jobs if found is not None else ():
            now = found.get(job.facts.oid) if found is not None else None
            if now is None:
                self._tables.decide(events.TableGone(job.facts.oid, DROPPED))
                changed.add(job.facts.oid)
            elif (unseen := compare(job.facts.relfilenode, fingerprint(job.facts), now)) is not None:
                self._tables.decide(events.SnapshotSpoiled(now, unseen, job.generation))
                changed.add(job.facts.oid)
        return changed

    # what goes wrong

    def _wrong(self, job: Job, error: Wrong) -> None:
        with self._changed:
            if job.ended:
                return
        self._leave(job, done=False)
        facts = job.facts
        if isinstance(error, SnapshotRaced):
            self._result.raced.add(facts.oid)
            self._logger.warning(
                "the table changed while it was read, a new snapshot follows", table=job.name, reason=str(error)
            )
        elif isinstance(error, TableLater):
            later = self._result.locked if isinstance(error, TableLocked) else self._result.failing
            later.add(job.schema.table_id)
            self._tables.decide(events.SnapshotDelayed(facts.oid, str(error)))
            self._logger.warning("the table is read later", table=job.name, reason=str(error))
        elif isinstance(error, TableRefused):
            reason = f"{error}{'; ' if error.hint else ''}{error.hint}"
            self._tables.decide(events.SnapshotRefused(facts, reason, job.generation))
        else:
            unseen = Unseen(Cause.UNREADABLE, str(error))
            self._tables.decide(events.EqualityLost(facts.oid, unseen, lsn=self._lsn, generation=job.generation))

    def _moved_on(self, job: Job) -> None:
        self._leave(job, done=False)
        self._logger.warning(
            "the snapshot is not published: the table has moved on meanwhile",
            table=job.name,
            generation=job.generation,
        )

    def _leave(self, job: Job, *, done: bool) -> None:
        with self._changed:
            job.ended = True
            self._result.finished += done
        self._counts.left(job.name, done=done)


def groups(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Tables to be locked together. One that has more partitions than a group is one by itself."""
    group: list[Job] = []
    left = GROUP
    for job in jobs:
        size = 1 + len(job.facts.children)
        if group and size > left:
            yield group
            group, left = [], GROUP
        group.append(job)
        left -= size
    if group:
        yield group


def _relations(facts: TableFacts, blocks: dict[str, int]) -> tuple[str, ...]:
    """What a table is read by: its partitions, where each of them can be read by itself, or itself."""
    leaves = tuple(str(leaf.oid) for leaf in facts.children)
    return leaves if facts.relkind == "p" and leaves and all(oid in blocks for oid in leaves) else (str(facts.oid),)


def _end_of(job: Job, last: Snapshot) -> Snapshot:
    """The entry behind the last chunk."""
    return Snapshot(
        last.table_id,
        last.generation,
        last.schema_version,
        last.snapshot_lsn,
        (),
        final=True,
        relfilenode=job.facts.relfilenode,
        fingerprint=fingerprint(job.facts),
    )
