"""Assemblies to units: what the next manifest entry will publish.

Invariant: a unit holds whole transactions only. Rows of a transaction whose end has not been read wait in its body, as Arrow while they are few, as
uploaded body segments once they pass `body_bytes`; they enter a unit when the transaction commits and vanish when it rolls back.
Used by one thread. It uploads through the function it is given and never touches the store or the manifest itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

from service.contract import keys
from service.contract.entries import BodyCommit, Changes, Commits, Prepared, PreparedEnd, PreparedPart, Segment
from service.contract.schema import TableSchema
from service.errors import LimitReached, UnsupportedChange
from service.protocol.messages import RelationVersion
from service.protocol.tuples import walk_rows
from service.runtime import messagetable
from service.runtime.messagetable import encode_messages
from service.runtime.tables import TableBook
from service.source.schemas import relation_sent_as
from service.spool.encode import EncodedRows, encode_rows, encode_truncate
from service.spool.segment import SegmentFile, SegmentWriter
from service.transaction.assembly import (
    Assembly,
    Discarded,
    Ending,
    MessageRun,
    PreparedBody,
    PreparedCommitted,
    PreparedRolledBack,
    Published,
    RowRun,
    TruncateRun,
)

Upload = Callable[[str, TableSchema, SegmentFile], "Future[Segment]"]
"""Stores a finished file under a key; the future gives the manifest's record of it once it is durable."""


@dataclass(frozen=True, slots=True)
class BuilderLimits:
    """When to cut. `max_bytes` and `max_rows` bound a unit, `body_bytes` what one open transaction may keep in memory, all as received.

    `transaction_bytes` and `staged_bytes` bound the files of transactions that have not ended, of one and of all: past them the pipeline stops.
    """

    max_bytes: int = 128 << 20
    max_rows: int = 1_000_000
    body_bytes: int = 32 << 20
    transaction_bytes: int = 256 << 30
    staged_bytes: int = 1 << 40


@dataclass(frozen=True, slots=True)
class _Part:
    """A stored file of an open transaction: which relation its rows came as, and in which shape they were written."""

    relation: RelationVersion
    shape: TableSchema
    file: "Future[Segment]"


@dataclass(slots=True)
class _Body:
    waiting: list[tuple[RelationVersion, EncodedRows]] = field(default_factory=list)
    waiting_bytes: int = 0
    xid: int = 0
    stored: list[_Part] = field(default_factory=list)
    stored_bytes: int = 0


@dataclass(slots=True)
class _PreparedTransaction:
    """A body that waits for COMMIT PREPARED. `recorded` once a unit was cut that holds it."""

    fact: Prepared
    body: _Body
    recorded: bool


@dataclass(frozen=True, slots=True)
class Unit:
    """Everything that one entry publishes: what ended after `from_lsn`, at or before `through_lsn`, and nothing of that is missing.

    Files become durable by themselves; the entry may be written when all have.
    """

    segments: list["Future[Segment]"]
    bodies: list[tuple["Future[Segment]", int, BodyCommit]]
    commits: Commits
    prepared: list[tuple[Prepared, list[_Part]]]
    ended: list[PreparedEnd]
    from_lsn: int
    through_lsn: int

    def changes(self) -> Changes | None:
        """What the manifest records, None if that is nothing but an advance. Waits for each file to be durable and raises what its upload raised."""
        segments = [future.result() for future in self.segments]
        for future, schema_version, body in self.bodies:
            segments.append(replace(future.result(), schema_version=schema_version, first_lsn=body.end_lsn, last_lsn=body.end_lsn, body=body))
        prepared = [replace(fact, parts=tuple(PreparedPart(part.shape, part.file.result()) for part in parts)) for fact, parts in self.prepared]
        if not (segments or self.commits or prepared or self.ended):
            return None
        return Changes(tuple(segments), self.commits, tuple(prepared), tuple(self.ended))


class Builder:
    """Collects rows of one connection's transactions. After a reconnect a new one begins, with nothing but what the manifest says is `prepared`."""

    def __init__(
        self,
        *,
        book: TableBook,
        upload: Upload,
        epoch: int,
        numbers: Iterator[int],
        limits: BuilderLimits,
        start_lsn: int,
        prepared: Iterable[Prepared] = (),
    ) -> None:
        self._book = book
        self._upload = upload
        self._epoch = epoch
        self._numbers = numbers
        self._limits = limits
        self._bodies: dict[int, _Body] = {}
        self._prepared = {one.gid: _PreparedTransaction(one, _stored_body(one), recorded=True) for one in prepared}
        self._from_lsn = self.through_lsn = start_lsn
        self._reset()

    def _reset(self) -> None:
        self._writers: dict[tuple[str, int], SegmentWriter] = {}
        self._finished: list[Future[Segment]] = []
        self._published: list[tuple[Future[Segment], int, BodyCommit]] = []
        self._commits = Commits([], [], [], {})
        self._ended: list[PreparedEnd] = []
        self._ready_bytes = 0
        self._row_count = 0

    @property
    def full(self) -> Literal["", "bytes", "rows"]:
        """For which limit of its size a unit should be cut now, empty if for none."""
        return "bytes" if self._ready_bytes >= self._limits.max_bytes else "rows" if self._row_count >= self._limits.max_rows else ""

    @property
    def pending(self) -> bool:
        """Whether a cut would give anything to publish."""
        return bool(self._commits) or self._row_count > 0 or bool(self._ended) or not all(one.recorded for one in self._prepared.values())

    @property
    def open_bytes(self) -> int:
        """Bytes in memory for transactions that have not ended."""
        return sum(body.waiting_bytes for body in self._open_bodies())

    @property
    def staged_bytes(self) -> int:
        """Bytes in the object store for them."""
        return sum(body.stored_bytes for body in self._open_bodies())

    @property
    def open_transactions(self) -> int:
        """How many of them have rows here."""
        return sum(1 for body in self._open_bodies() if body.waiting or body.stored)

    def add(self, assembly: Assembly) -> None:
        """Takes a batch. Raises DecodeError for rows that are not what their relation says; nothing of this object may be used afterwards."""
        for run in assembly.runs:
            self._add_run(assembly, run)
        for truncate in assembly.truncates:
            self._add_truncate(truncate)
        self._add_messages(assembly.messages)
        for ending in assembly.endings:
            self._end(ending)
        self._keep_memory_bounded()
        self._add_commits(assembly.commits)
        self.through_lsn = assembly.through_lsn

    def cut(self) -> Unit:
        """Closes the unit and begins the next. What belongs to open transactions stays."""
        for writer in self._writers.values():
            self._finish(writer)
        unit = Unit(self._finished, self._published, self._commits, self._record_prepared(), self._ended, self._from_lsn, self.through_lsn)
        self._from_lsn = unit.through_lsn
        self._reset()
        return unit

    def _record_prepared(self) -> list[tuple[Prepared, list[_Part]]]:
        """What was prepared since the last unit and has not ended yet: its rows become files now, before its PREPARE may be acknowledged."""
        new = [one for one in self._prepared.values() if not one.recorded]
        for one in new:
            self._store_body(one.body)
            one.recorded = True
        return [(one.fact, one.body.stored) for one in new]

    def _end(self, ending: Ending) -> None:
        match ending:
            case Published():
                body = self._bodies.pop(ending.body, None)
                if body is not None:
                    self._settle_messages(body, ending.doubt_until)
                    self._publish(body, BodyCommit(ending.end_lsn, ending.commit_time_us, ending.xid, ending.aborted_xids))
            case Discarded():
                self._bodies.pop(ending.body, None)
            case PreparedBody():
                body = self._bodies.pop(ending.body, None) or _Body()
                self._settle_messages(body, ending.doubt_until)
                self._prepared[ending.fact.gid] = _PreparedTransaction(ending.fact, body, recorded=False)
            case PreparedCommitted():
                one = self._end_prepared(ending.gid, "committed")
                self._publish(one.body, BodyCommit(ending.end_lsn, ending.commit_time_us, ending.xid, one.fact.aborted_xids))
            case PreparedRolledBack():
                self._end_prepared(ending.gid, "rolled_back")

    def _end_prepared(self, gid: str, fate: str) -> _PreparedTransaction:
        one = self._prepared.pop(gid)
        if one.recorded:
            self._ended.append(PreparedEnd(gid, one.fact.end_lsn, fate))
        return one

    def _open_bodies(self) -> Iterator[_Body]:
        yield from self._bodies.values()
        for one in self._prepared.values():
            yield one.body

    def _keep_memory_bounded(self) -> None:
        """Open transactions together get twice what one may have: many middling streams must not add up to more."""
        held = self.open_bytes
        for body in sorted(self._open_bodies(), key=lambda body: -body.waiting_bytes):
            if max(body.waiting_bytes, held // 2) <= self._limits.body_bytes:
                return
            held -= body.waiting_bytes
            self._store_body(body)

    def _add_run(self, assembly: Assembly, run: RowRun) -> None:
        schema = self._schema(run.relation, run.position_lsn, undecided=run.undecided)
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
        schema = self._schema(run.relation, run.position_lsn, undecided=run.undecided)
        if schema is not None:
            self._keep(run, schema, encode_truncate(schema, ordinal=run.ordinal, xid=run.xid, lsn=run.lsn, commit_time_us=run.commit_time_us))

    def _add_messages(self, runs: Sequence[MessageRun]) -> None:
        fates: dict[tuple[int | None, bool], list[MessageRun]] = {}
        for run in runs:
            fates.setdefault((run.body, run.commit_time_us is None), []).append(run)
        for together in fates.values():
            encoded = encode_messages(together)
            self._keep_rows(messagetable.RELATION, messagetable.SCHEMA, encoded, body=together[0].body, xid=together[0].xid)

    def _schema(self, relation: RelationVersion, position_lsn: int, *, undecided: bool) -> TableSchema | None:
        return self._book.provisional(relation) if undecided else self._book.resolve(relation, position_lsn=position_lsn)

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
            file = writer.finish()
            body.stored_bytes += len(file.data)
            self._check_staged(body)
            body.stored.append(_Part(relation, schema, self._upload(key, schema, file)))
        body.waiting.clear()
        body.waiting_bytes = 0

    def _check_staged(self, body: _Body) -> None:
        everything = body.stored_bytes + sum(other.stored_bytes for other in self._open_bodies() if other is not body)
        for name, held, limit in (
            ("limits.transaction", body.stored_bytes, self._limits.transaction_bytes),
            ("limits.staged", everything, self._limits.staged_bytes),
        ):
            if held > limit:
                raise LimitReached(
                    f"transactions that have not ended hold {held} bytes in the object store, more than {name} ({limit}); the last came from {body.xid}",
                    hint="raise the limit, or end the transaction at the source (pg_stat_activity, backend_xid); nothing is lost, it is all sent again",
                )

    def _settle_messages(self, body: _Body, doubt_until: int) -> None:
        """Of messages that are still in memory it is known now which are certain. One stored before stays in doubt."""
        for at, (relation, encoded) in enumerate(body.waiting):
            if relation == messagetable.RELATION:
                body.waiting[at] = (relation, messagetable.settled(encoded, doubt_until=doubt_until))

    def _publish(self, body: _Body, commit: BodyCommit) -> None:
        if commit.aborted_xids:
            self._store_body(body)
        position = commit.end_lsn
        for relation, encoded in body.waiting:
            schema = self._book.resolve(relation, position_lsn=position)
            if schema is not None:
                self._write(schema, encoded.with_commit(lsn=commit.end_lsn, commit_time_us=commit.commit_time_us))
        for part in body.stored:
            schema = self._book.resolve(part.relation, position_lsn=position)
            if schema is not None:
                self._published.append((part.file, schema.version, commit))

    def _add_commits(self, commits: Commits) -> None:
        ours = self._commits
        offset = len(ours.end_lsn)
        for position, origin in commits.origins.items():
            ours.origins[offset + position] = origin
        ours.end_lsn.extend(commits.end_lsn)  # type: ignore[attr-defined]
        ours.commit_time_us.extend(commits.commit_time_us)  # type: ignore[attr-defined]
        ours.xid.extend(commits.xid)  # type: ignore[attr-defined]


def _stored_body(prepared: Prepared) -> _Body:
    """The body of a transaction that an earlier session recorded."""
    body = _Body(xid=prepared.xid)
    for part in prepared.parts:
        file: Future[Segment] = Future()
        file.set_result(part.segment)
        body.stored.append(_Part(relation_sent_as(part.shape), part.shape, file))
        body.stored_bytes += part.segment.bytes
    return body
