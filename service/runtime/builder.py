"""Assemblies to units: what the next manifest entry will publish.

Invariant: a unit holds whole transactions only. Rows of a transaction whose end has not been read wait in its body, as Arrow while they are few, as
uploaded body segments once they pass `body_bytes`; they enter a unit when the transaction commits and vanish when it rolls back.
Used by one thread. It uploads through the function it is given and never touches the store or the manifest itself.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from service.contract import keys
from service.contract.entries import BodyCommit, Commits, Segment
from service.contract.schema import TableSchema
from service.errors import UnsupportedChange
from service.protocol.messages import RelationVersion
from service.protocol.tuples import walk_rows
from service.runtime import messagetable
from service.runtime.messagetable import encode_messages
from service.runtime.tables import TableBook
from service.spool.encode import EncodedRows, encode_rows, encode_truncate
from service.spool.segment import SegmentFile, SegmentWriter
from service.transaction.assembly import Assembly, MessageRun, Published, RowRun, TruncateRun

Upload = Callable[[str, TableSchema, SegmentFile], "Future[Segment]"]
"""Stores a finished file under a key; the future gives the manifest's record of it once it is durable."""


@dataclass(frozen=True, slots=True)
class BuilderLimits:
    """When to cut. `max_bytes` and `max_rows` bound a unit, `body_bytes` what one open transaction may keep in memory, all as received."""

    max_bytes: int = 128 << 20
    max_rows: int = 1_000_000
    body_bytes: int = 32 << 20


@dataclass(slots=True)
class _Body:
    waiting: list[tuple[RelationVersion, EncodedRows]] = field(default_factory=list)
    waiting_bytes: int = 0
    xid: int = 0
    stored: list[tuple[RelationVersion, "Future[Segment]"]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unit:
    """Everything that one entry publishes. `segments` become durable by themselves; the entry may be written when all have."""

    segments: list["Future[Segment]"]
    bodies: list[tuple["Future[Segment]", int, BodyCommit]]
    commits: Commits
    through_lsn: int
    row_count: int

    @property
    def empty(self) -> bool:
        return not self.commits.end_lsn and not self.segments and not self.bodies

    def published(self) -> Iterator[Segment]:
        """The segments as the manifest records them; waits for each to be durable and raises what its upload raised."""
        for future in self.segments:
            yield future.result()
        for future, schema_version, body in self.bodies:
            yield replace(future.result(), schema_version=schema_version, first_lsn=body.end_lsn, last_lsn=body.end_lsn, body=body)


class Builder:
    """Collects rows of one connection's transactions. After a reconnect a new one begins from nothing."""

    def __init__(self, *, book: TableBook, upload: Upload, epoch: int, numbers: Iterator[int], limits: BuilderLimits, start_lsn: int) -> None:
        self._book = book
        self._upload = upload
        self._epoch = epoch
        self._numbers = numbers
        self._limits = limits
        self._bodies: dict[int, _Body] = {}
        self.through_lsn = start_lsn
        self._reset()

    def _reset(self) -> None:
        self._writers: dict[tuple[str, int], SegmentWriter] = {}
        self._finished: list[Future[Segment]] = []
        self._published: list[tuple[Future[Segment], int, BodyCommit]] = []
        self._commits = Commits([], [], [], {})
        self._ready_bytes = 0
        self._row_count = 0

    @property
    def full(self) -> bool:
        """Whether a unit should be cut now, for its size."""
        return self._ready_bytes >= self._limits.max_bytes or self._row_count >= self._limits.max_rows

    @property
    def pending(self) -> bool:
        """Whether a cut would give anything to publish."""
        return bool(self._commits.end_lsn) or self._row_count > 0

    @property
    def open_bytes(self) -> int:
        """Bytes in memory for transactions that have not ended."""
        return sum(body.waiting_bytes for body in self._bodies.values())

    def add(self, assembly: Assembly) -> None:
        """Takes a batch. Raises DecodeError for rows that are not what their relation says; nothing of this object may be used afterwards."""
        for run in assembly.runs:
            self._add_run(assembly, run)
        for truncate in assembly.truncates:
            self._add_truncate(truncate)
        self._add_messages(assembly.messages)
        for ending in assembly.endings:
            body = self._bodies.pop(ending.body, None)
            if body is not None and isinstance(ending, Published):
                self._publish(body, BodyCommit(ending.end_lsn, ending.commit_time_us, ending.xid, ending.aborted_xids))
        self._keep_memory_bounded()
        self._add_commits(assembly.commits)
        self.through_lsn = assembly.through_lsn

    def cut(self) -> Unit:
        """Closes the unit and begins the next. What belongs to open transactions stays."""
        for writer in self._writers.values():
            self._finish(writer)
        unit = Unit(self._finished, self._published, self._commits, self.through_lsn, self._row_count)
        self._reset()
        return unit

    def _keep_memory_bounded(self) -> None:
        """Open transactions together get twice what one may have: many middling streams must not add up to more."""
        for body in sorted(self._bodies.values(), key=lambda body: -body.waiting_bytes):
            if body.waiting_bytes > self._limits.body_bytes or self.open_bytes > 2 * self._limits.body_bytes:
                self._store_body(body)

    def _add_run(self, assembly: Assembly, run: RowRun) -> None:
        schema = self._schema(run.relation, run.position_lsn, in_stream=run.in_stream)
        if schema is None:
            return
        rows = walk_rows(assembly.table, run.rows, len(run.relation.columns), in_stream=run.in_stream)
        try:
            encoded = encode_rows(rows, schema, ordinal=run.ordinal, xid=run.xid, lsn=run.lsn, commit_time_us=run.commit_time_us)
        except UnsupportedChange as error:
            # These rows cannot be carried exactly, so the table says so and is left out; all others go on.
            self._book.mark_stale(run.relation.oid, str(error), lsn=run.position_lsn)
            return
        self._keep(run, schema, encoded)

    def _add_truncate(self, run: TruncateRun) -> None:
        schema = self._schema(run.relation, run.position_lsn, in_stream=run.lsn is None)
        if schema is not None:
            self._keep(run, schema, encode_truncate(schema, ordinal=run.ordinal, xid=run.xid, lsn=run.lsn, commit_time_us=run.commit_time_us))

    def _add_messages(self, runs: Sequence[MessageRun]) -> None:
        fates: dict[tuple[int | None, bool], list[MessageRun]] = {}
        for run in runs:
            fates.setdefault((run.body, run.commit_time_us is None), []).append(run)
        for together in fates.values():
            encoded = encode_messages(together)
            self._keep_rows(messagetable.RELATION, messagetable.SCHEMA, encoded, body=together[0].body, xid=together[0].xid)

    def _schema(self, relation: RelationVersion, position_lsn: int, *, in_stream: bool) -> TableSchema | None:
        return self._book.provisional(relation) if in_stream else self._book.resolve(relation, position_lsn=position_lsn)

    def _keep(self, run: RowRun | TruncateRun, schema: TableSchema, encoded: EncodedRows) -> None:
        xid = run.xid if isinstance(run, TruncateRun) else int(run.xid[0])
        self._keep_rows(run.relation, schema, encoded, body=run.body, xid=xid)

    def _keep_rows(self, relation: RelationVersion, schema: TableSchema, encoded: EncodedRows, *, body: int | None, xid: int) -> None:
        if body is None:
            self._write(schema, encoded)
            return
        owner = self._bodies.setdefault(body, _Body())
        owner.xid = xid
        owner.waiting.append((relation, encoded))
        owner.waiting_bytes += encoded.nbytes

    def _write(self, schema: TableSchema, encoded: EncodedRows) -> None:
        place = (schema.table_id, schema.version)
        writer = self._writers.get(place)
        if writer is None:
            writer = self._writers[place] = SegmentWriter(schema)
        writer.append(encoded)
        self._ready_bytes += encoded.nbytes
        self._row_count += encoded.stats.rows

    def _finish(self, writer: SegmentWriter) -> None:
        schema = writer.schema
        key = keys.segment(schema.table_id, self._epoch, next(self._numbers))
        self._finished.append(self._upload(key, schema, writer.finish()))

    def _store_body(self, body: _Body) -> None:
        by_relation: dict[RelationVersion, list[EncodedRows]] = {}
        for relation, encoded in body.waiting:
            by_relation.setdefault(relation, []).append(encoded)
        for relation, batches in by_relation.items():
            schema = self._book.provisional(relation)
            if schema is None:
                continue
            writer = SegmentWriter(schema)
            for encoded in batches:
                writer.append(encoded)
            key = keys.staged(self._epoch, body.xid, next(self._numbers))
            body.stored.append((relation, self._upload(key, schema, writer.finish())))
        body.waiting.clear()
        body.waiting_bytes = 0

    def _publish(self, body: _Body, commit: BodyCommit) -> None:
        if commit.aborted_xids:
            self._store_body(body)
        position = commit.end_lsn
        for relation, encoded in body.waiting:
            schema = self._book.resolve(relation, position_lsn=position)
            if schema is not None:
                self._write(schema, encoded.with_commit(lsn=commit.end_lsn, commit_time_us=commit.commit_time_us))
        for relation, stored in body.stored:
            schema = self._book.resolve(relation, position_lsn=position)
            if schema is not None:
                self._published.append((stored, schema.version, commit))

    def _add_commits(self, commits: Commits) -> None:
        ours = self._commits
        offset = len(ours.end_lsn)
        for position, origin in commits.origins.items():
            ours.origins[offset + position] = origin
        ours.end_lsn.extend(commits.end_lsn)  # type: ignore[attr-defined]
        ours.commit_time_us.extend(commits.commit_time_us)  # type: ignore[attr-defined]
        ours.xid.extend(commits.xid)  # type: ignore[attr-defined]
