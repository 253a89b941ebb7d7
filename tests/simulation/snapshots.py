"""Initial rows in a history: what `Snapshotter` and `ChunkRound` do, step by step, with rows of the model.

Their sessions, threads and COPY are the model's. The order is theirs: facts, then the exported snapshot, which comes
only when every transaction that was open has ended; then for each chunk the lock, the comparison under the lock
and the rows; then the entry, and for the last one a look whether anything happened since the facts.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.chunks import BlockRange, remaining
from sluice.contract.entries import Snapshot
from sluice.contract.reasons import DROPPED
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.snapshot.reader import _raced
from sluice.ingest.snapshot.snapshotter import cannot_end, cannot_go_on, end_of
from sluice.manifest.snapshot_state import SnapshotState
from sluice.tables import events
from sluice.tables.catalog_diff import compare, fingerprint
from tests.simulation.catalog import BLOCK, Row
from tests.simulation.encoding import Change, Values, file_of
from tests.simulation.ingest import Process, World

BLOCKS = 4


@dataclass(slots=True, eq=False)
class _Job:
    facts: TableFacts
    schema: TableSchema
    generation: int
    before: SnapshotState | None
    relations: tuple[str, ...] = ()
    to_come: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Chunk:
    job: _Job
    ranges: tuple[BlockRange | None, ...]


class Snapshots:
    """The thread that takes snapshots of one process. `chunk_blocks` is how many blocks a chunk has."""

    def __init__(self, world: World, process: Process, *, chunk_blocks: int) -> None:
        self._world = world
        self._process = process
        self._tables = process.tables
        self._chunk_blocks = chunk_blocks
        self._steps: Iterator[bool] | None = None
        self._waits: set[int] = set()

    @property
    def can_step(self) -> bool:
        """Whether the next step can be taken now: an exported snapshot waits for open transactions."""
        if self._steps is not None:
            return not self._waits & self._world.server.open.keys()
        return any(table.state == State.SNAPSHOT for table in self._tables.states().values())

    def step(self) -> None:
        """The next step of the round, or the first one of another. Raises ServiceError, which ends the round."""
        self._steps = self._steps or self._round()
        steps = self._steps
        try:
            next(steps)
        except StopIteration:
            self._steps = None
        except BaseException:
            self._steps = None
            raise

    def lose(self) -> None:
        """The sessions are gone: the round ends."""
        self._steps, self._waits = None, set()

    def _round(self) -> Iterator[bool]:
        self._finish_joined()
        jobs = self._jobs()
        if not jobs:
            return
        self._waits = set(self._world.server.open)
        yield True
        self._waits = set()
        lsn = self._world.server.now
        yield True
        chunks = [chunk for job in jobs for chunk in self._chunks_of(job)]
        for chunk in chunks:
            if chunk.job.ended:
                continue
            entry = yield from self._read(chunk, lsn)
            yield True
            if entry is not None:
                yield from self._publish(chunk.job, entry, lsn)

    def _jobs(self) -> list[_Job]:
        found: list[_Job] = []
        for table_id, state in self._tables.states().items():
            if state.state != State.SNAPSHOT or (state.snapshot is not None and state.snapshot.complete):
                continue
            self._process.catalog.ask()
            facts = self._process.catalog.table(int(table_id))
            if facts is None:
                self._tables.decide(events.TableGone(int(table_id), DROPPED))
                continue
            state = self._tables.states()[table_id]
            before = state.snapshot
            if before is not None and (why := cannot_go_on(facts, state, before)):
                self._tables.decide(events.SnapshotSpoiled(facts, why, generation=state.generation))
            if (schema := self._tables.decide(events.SnapshotDue(facts))) is not None:
                state = self._tables.states()[table_id]
                found.append(_Job(facts, schema, state.generation, state.snapshot))
        return found

    def _finish_joined(self) -> None:
        for table_id, state in self._tables.states().items():
            snapshot = state.snapshot
            if state.state != State.SNAPSHOT or snapshot is None or not snapshot.complete:
                continue
            if snapshot.snapshot_lsn > self._tables.through_lsn:
                continue
            self._process.catalog.ask()
            facts = self._process.catalog.table(int(table_id))
            if facts is None:
                self._tables.decide(events.TableGone(int(table_id), DROPPED))
                continue
            if (why := cannot_end(facts, state, snapshot)) is not None:
                self._tables.decide(events.SnapshotSpoiled(facts, why, generation=state.generation))
                continue
            self._world.between()
            end = end_of(state, snapshot)
            self._tables.publish_snapshot(end)

    def _chunks_of(self, job: _Job) -> list[_Chunk]:
        oid = str(job.facts.oid)
        size = self._chunk_blocks
        job.relations = job.before.relations if job.before is not None else (oid,)
        if job.before is None and size >= BLOCKS:
            job.relations, job.to_come = (), 1
            return [_Chunk(job, (None,))]
        done = job.before.done if job.before is not None else ()
        chunks = [_Chunk(job, (one,)) for one in remaining(job.relations, done, {oid: BLOCKS}, size=size)]
        job.to_come = len(chunks)
        return chunks

    def _read(self, chunk: _Chunk, lsn: int) -> Generator[bool, None, Snapshot | None]:
        """The entry of a chunk whose files are stored, None when something is wrong with the table."""
        job, server = chunk.job, self._world.server
        if server.is_locked(job.facts.oid):
            self._tables.decide(events.SnapshotDelayed(job.facts.oid, "locks of other sessions"))
            job.ended = True
            return None
        self._process.catalog.ask()
        if server.is_locked(job.facts.oid):
            job.ended = True
            return None
        now = self._process.catalog.table(job.facts.oid)
        if _raced(job.facts, now) is not None:
            job.ended = True
            return None
        _, rows = server.at(job.facts.oid, lsn)
        changes = self._changes(chunk, rows, lsn)
        futures = []
        if changes:
            key = keys.segment(job.schema.table_id, self._process.log.stored.epoch, next(self._process.numbers))
            futures.append(self._process.committer.upload(key, job.schema, file_of(job.schema, changes)))
        yield True
        return Snapshot(
            job.schema.table_id,
            job.generation,
            job.schema.version,
            lsn,
            tuple(future.result() for future in futures),
            final=not job.relations,
            relfilenode=job.facts.relfilenode,
            fingerprint=fingerprint(job.facts),
            relations=job.relations,
            ranges=tuple(one for one in chunk.ranges if one is not None),
        )

    @staticmethod
    def _changes(chunk: _Chunk, rows: dict[str, Row], lsn: int) -> list[Change]:
        found: list[Change] = []
        facts = {column.attnum: column for column in chunk.job.facts.columns}
        for row in rows.values():
            block = row[BLOCK]
            assert isinstance(block, int)
            if all(one is None or one.first <= block < (one.end or block + 1) for one in chunk.ranges):
                values: Values = {}
                for column in chunk.job.schema.columns:
                    value = row.get(column.attnum, facts[column.attnum].missing)
                    values[column.attnum] = None if value is None else str(value)
                # By the block, as in `first_ordinal`: no two rows of a snapshot have the same.
                ordinal = (block << 11) + len(found)
                found.append(("i", lsn, ordinal, 0, values, None))
        return found

    def _publish(self, job: _Job, entry: Snapshot, lsn: int) -> Iterator[bool]:
        if not entry.final:
            if not self._tables.publish_snapshot(entry):
                job.ended = True
                return
            job.to_come -= 1
            yield True
            if job.to_come or job.ended:
                return
            if job.before is not None and job.before.first_lsn != lsn:
                job.ended = True
                return
            entry = replace(entry, segments=(), final=True, relations=(), ranges=())
        self._process.catalog.ask()
        now = self._process.catalog.table(job.facts.oid)
        if now is None:
            self._tables.decide(events.TableGone(job.facts.oid, DROPPED))
        elif (unseen := compare(job.facts.relfilenode, fingerprint(job.facts), now)) is not None:
            self._tables.decide(events.SnapshotSpoiled(now, unseen, generation=job.generation))
        else:
            yield True
            self._tables.publish_snapshot(entry)
        job.ended = True
