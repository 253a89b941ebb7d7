"""Assemblies to units: what the next manifest entry will publish.

Invariant: a unit holds whole transactions only. Rows of a transaction whose end has not been read
wait in its body, in memory while they are few, in files once they pass `body_bytes`; they enter a
unit when the transaction commits and vanish when it rolls back. What a table's shape becomes is
decided in commit order, by rows that exist: never by a transaction that may still roll back, nor by
a savepoint that did. Used by one thread. It stores and fetches files by the functions it is given
and never touches the store or the manifest itself.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from sluice.contract import keys
from sluice.contract.column_values import NO_KEYS, HashKeys
from sluice.contract.entries import BodyCommit, Commits, Prepared, PreparedEnd, Segment
from sluice.contract.schema import TableSchema
from sluice.errors import LimitReached, UnsupportedChange
from sluice.ingest.assemble.assembly import (
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
from sluice.ingest.encode.bodies import Body, Part, PreparedTransaction, recorded, sent_shape
from sluice.ingest.encode.column_rules import stored_rows
from sluice.ingest.encode.large import write_large
from sluice.ingest.encode.messages import encode_messages, settled
from sluice.ingest.encode.rows import EncodedRows, encode_rows, encode_truncate
from sluice.ingest.encode.segment import SegmentFile, SegmentWriter, write_segment
from sluice.ingest.encode.undecoded import SentRows, read_sent_file, sent_rows, sent_truncate, write_sent_file
from sluice.ingest.encode.unit import Unit
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.protocol.messages import RelationVersion
from sluice.protocol.tuples import walk_rows
from sluice.tables import events
from sluice.tables import messages as messagetable

Upload = Callable[[str, TableSchema, SegmentFile], "Future[Segment]"]
"""Stores a finished file under a key; the future gives the manifest's record of it once it is
durable.
"""
Fetch = Callable[[str], bytes]
"""The file that was stored under a key."""

_WITHHELD = (
    "a transaction changed its columns and wrote rows in the new shape: what its column rules say of them was known "
    "when it had committed, and until then nothing of them may be stored"
)


@dataclass(frozen=True, slots=True)
class BuilderLimits:
    """When to cut. `max_bytes` and `max_rows` bound a unit, `body_bytes` what one open transaction
    may keep in memory, all as received.

    `transaction_bytes` and `staged_bytes` bound the files of transactions that have not ended, of
    one and of all: past them the pipeline stops.
    """

    max_bytes: int = 128 << 20
    max_rows: int = 1_000_000
    body_bytes: int = 32 << 20
    transaction_bytes: int = 256 << 30
    staged_bytes: int = 1 << 40

    @property
    def memory_limit_bytes(self) -> int:
        """What all open transactions together may keep in memory."""
        return 2 * self.body_bytes


class Builder:
    """Collects rows of one connection's transactions. After a reconnect a new one begins, with
    nothing but what the manifest says is `prepared`.
    """

    def __init__(
        self,
        *,
        tables: FollowedTables,
        upload: Upload,
        fetch: Fetch,
        epoch: int,
        numbers: Iterator[int],
        limits: BuilderLimits,
        start_lsn: int,
        prepared: Iterable[Prepared] = (),
        hash_keys: HashKeys = NO_KEYS,
    ) -> None:
        self._tables = tables
        self._upload = upload
        self._fetch = fetch
        self._epoch = epoch
        self._hash_keys = hash_keys
        self._numbers = numbers
        self.limits = limits
        self._bodies: dict[int, Body] = {}
        self._prepared = {one.gid: recorded(one) for one in prepared}
        self._from_lsn = self.through_lsn = start_lsn
        self._reset()

    def _reset(self) -> None:
        self._writers: dict[tuple[str, int], SegmentWriter] = {}
        self._large: deque[EncodedRows] = deque()
        self._finished: list[Future[Segment]] = []
        self._published: list[tuple[Future[Segment], int, BodyCommit]] = []
        self._commits = Commits([], [], [], {})
        self._ended: list[PreparedEnd] = []
        self._ready_bytes = 0
        self._row_count = 0

    @property
    def full(self) -> Literal["", "bytes", "rows"]:
        """For which limit of its size a unit should be cut now, empty if for none."""
        return (
            "bytes"
            if self._ready_bytes >= self.limits.max_bytes
            else "rows"
            if self._row_count >= self.limits.max_rows
            else ""
        )

    @property
    def pending(self) -> bool:
        """Whether a cut would give anything to publish."""
        return (
            bool(self._commits)
            or self._row_count > 0
            or bool(self._ended)
            or not all(one.recorded for one in self._prepared.values())
            or self._tables.has_decided(self.through_lsn)
        )

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
        """Takes a batch. Raises DecodeError for rows that are not what their relation says; nothing
        of this object may be used afterwards.
        """
        decided: list[RowRun | TruncateRun] = []
        runs: Iterable[RowRun | TruncateRun] = (*assembly.runs, *assembly.truncates)
        for run in runs:
            if run.undecided:
                self._keep_open(assembly, run)
            else:
                decided.append(run)
        self._add_messages(assembly.messages)
        # In commit order, and in wire order within a commit: a shape is compared with the one
        # before it.
        decided.sort(key=lambda run: (run.position_lsn, run.shape), reverse=True)
        for ending in assembly.endings:
            if isinstance(ending, Published | PreparedCommitted):
                while decided and decided[-1].position_lsn <= ending.commit_lsn:
                    self._add_decided(assembly, decided.pop())
            self._end(ending)
        while decided:
            self._add_decided(assembly, decided.pop())
        self._add_commits(assembly.commits)
        self.through_lsn = assembly.through_lsn

    def relieve(self) -> None:
        """Writes what is too large to wait. Apart from `add`, so that the batch it came in is out
        of memory by then.
        """
        while self._large:
            schema = self._large[0].schema
            self._finish_file(schema, write_large(self._large))
        self._keep_memory_bounded()

    def cut(self) -> Unit:
        """Closes the unit and begins the next. What belongs to open transactions stays."""
        self.relieve()
        for writer in self._writers.values():
            self._finish(writer)
        unit = Unit(
            self._finished,
            self._published,
            self._commits,
            self._record_prepared(),
            self._ended,
            self._tables.take(self.through_lsn),
            self._from_lsn,
            self.through_lsn,
        )
        self._from_lsn = unit.through_lsn
        self._reset()
        return unit

    def _record_prepared(self) -> list[tuple[Prepared, list[Part]]]:
        """What was prepared since the last unit and has not ended yet: its rows become files now,
        before its PREPARE may be acknowledged.
        """
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
                    commit = BodyCommit(ending.end_lsn, ending.commit_time_us, ending.xid, ending.aborted_xids)
                    self._publish(body, commit, position_lsn=ending.commit_lsn)
            case Discarded():
                self._bodies.pop(ending.body, None)
            case PreparedBody():
                body = self._bodies.pop(ending.body, None) or Body()
                self._settle_messages(body, ending.doubt_until)
                self._prepared[ending.fact.gid] = PreparedTransaction(ending.fact, body, recorded=False)
            case PreparedCommitted():
                one = self._end_prepared(ending.gid, "committed")
                commit = BodyCommit(ending.end_lsn, ending.commit_time_us, ending.xid, one.fact.aborted_xids)
                self._publish(one.body, commit, position_lsn=ending.commit_lsn)
            case PreparedRolledBack():
                self._end_prepared(ending.gid, "rolled_back")

    def _end_prepared(self, gid: str, fate: str) -> PreparedTransaction:
        one = self._prepared.pop(gid)
        if one.recorded:
            self._ended.append(PreparedEnd(gid, one.fact.end_lsn, fate))
        return one

    def _open_bodies(self) -> Iterator[Body]:
        yield from self._bodies.values()
        for one in self._prepared.values():
            yield one.body

    def _keep_memory_bounded(self) -> None:
        """Open transactions together get twice what one may have: many middling streams must not
        add up to more.
        """
        held = self.open_bytes
        for body in sorted(self._open_bodies(), key=lambda body: -body.waiting_bytes):
            if max(body.waiting_bytes, held // 2) <= self.limits.body_bytes:
                return
            held -= body.waiting_bytes
            self._store_body(body)

    def _keep_open(self, assembly: Assembly, run: RowRun | TruncateRun) -> None:
        """Takes changes of a transaction that may still roll back."""
        schema = self._tables.written_in(run.relation)
        if schema is None:
            return
        if isinstance(schema, TableSchema) and not self._is_unsettled(run):
            for encoded in self._encoded(assembly, run, schema):
                self._keep(run, encoded)
        elif isinstance(run, TruncateRun):
            self._keep(run, sent_truncate(ordinal=run.ordinal, xid=run.xid))
        else:
            self._keep(
                run, sent_rows(assembly.table, run.rows, ordinal=run.ordinal, xid=run.xid, in_stream=run.in_stream)
            )

    def _is_unsettled(self, run: RowRun | TruncateRun) -> bool:
        """Whether the transaction gave the table another shape before."""
        assert run.body is not None
        owner = self._bodies.get(run.body)
        return owner is not None and run.relation.oid in owner.unsettled

    def _add_decided(self, assembly: Assembly, run: RowRun | TruncateRun) -> None:
        """Takes changes that have committed."""
        xid = _transaction(run, assembly.commits)
        schema = self._tables.resolve(run.relation, position_lsn=run.position_lsn, reaches_lsn=run.reaches_lsn, xid=xid)
        for encoded in self._encoded(assembly, run, schema) if schema is not None else ():
            if run.body is None:
                self._write(encoded)
            else:
                self._keep(run, encoded)

    def _encoded(self, assembly: Assembly, run: RowRun | TruncateRun, schema: TableSchema) -> Iterator[EncodedRows]:
        """The run in `schema`, or nothing: rows that cannot be carried exactly turn their table
        stale, and all others go on.
        """
        if isinstance(run, TruncateRun):
            yield encode_truncate(
                schema, ordinal=run.ordinal, xid=run.xid, lsn=run.lsn, commit_time_us=run.commit_time_us
            )
            return
        rows = walk_rows(assembly.table, run.rows, len(run.relation.columns), in_stream=run.in_stream)
        try:
            yield encode_rows(
                stored_rows(rows, schema),
                schema,
                ordinal=run.ordinal,
                xid=run.xid,
                lsn=run.lsn,
                commit_time_us=run.commit_time_us,
                keys=self._hash_keys,
            )
        except UnsupportedChange as error:
            position_lsn = None if run.undecided else run.position_lsn
            self._tables.decide(events.ValueLost(run.relation.oid, str(error), position_lsn))

    def _keep(self, run: RowRun | TruncateRun, rows: EncodedRows | SentRows) -> None:
        assert run.body is not None
        owner = self._bodies.setdefault(run.body, Body())
        owner.decided = not run.undecided
        owner.keep(run.relation, rows, xid=_first_xid(run))

    def _add_messages(self, runs: Sequence[MessageRun]) -> None:
        fates: dict[tuple[int | None, bool], list[MessageRun]] = {}
        for run in runs:
            fates.setdefault((run.body, run.commit_time_us is None), []).append(run)
        for (body, _), together in fates.items():
            encoded = encode_messages(together)
            if body is None:
                self._write(encoded)
            else:
                self._bodies.setdefault(body, Body()).keep(messagetable.RELATION, encoded, xid=together[0].xid)

    def _write(self, encoded: EncodedRows) -> None:
        self._ready_bytes += encoded.nbytes
        self._row_count += encoded.stats.rows
        if encoded.large:
            self._large.append(encoded)
            return
        place = (encoded.schema.table_id, encoded.schema.version)
        writer = self._writers.get(place)
        if writer is None:
            writer = self._writers[place] = SegmentWriter(encoded.schema)
        writer.append(encoded)
        if writer.nbytes >= self.limits.max_bytes:
            # A unit is not cut within a transaction, but its files are: what was kept as it was
            # sent may be any amount.
            self._finish(self._writers.pop(place))

    def _finish(self, writer: SegmentWriter) -> None:
        self._finish_file(writer.schema, writer.finish())

    def _finish_file(self, schema: TableSchema, file: SegmentFile) -> None:
        key = keys.segment(schema.table_id, self._epoch, next(self._numbers))
        self._finished.append(self._upload(key, schema, file))

    def _store_body(self, body: Body) -> None:
        """Moves what waits into files: one for each schema version, one for each announcement of rows
        as they were sent, and one for each batch that is large. A transaction with thousands of
        savepoints has an announcement for each.
        """
        encoded: dict[tuple[str, int], list[tuple[RelationVersion, EncodedRows]]] = {}
        sent: dict[int, tuple[RelationVersion, list[SentRows]]] = {}
        waiting = body.take()
        while waiting:
            relation, rows = waiting.popleft()
            if isinstance(rows, SentRows):
                # Not by what it says: one shape can come twice in a transaction.
                withheld = self._tables.keeps_values_out(relation)
                sent.setdefault(id(relation), (relation, []))[1].append(rows.withheld() if withheld else rows)
            elif rows.large:
                self._store(body, (relation,), rows.schema, write_large(deque([rows])))
            else:
                encoded.setdefault((rows.schema.table_id, rows.schema.version), []).append((relation, rows))
        for together in encoded.values():
            schema = together[0][1].schema
            announced = {id(relation): relation for relation, _ in together}
            self._store(body, tuple(announced.values()), schema, write_segment(schema, (rows for _, rows in together)))
        for relation, parts in sent.values():
            self._store(body, (relation,), sent_shape(relation), write_sent_file(parts))

    def _store(self, body: Body, announced: tuple[RelationVersion, ...], shape: TableSchema, file: SegmentFile) -> None:
        key = keys.staged(self._epoch, body.xid, next(self._numbers))
        body.stored_bytes += len(file.data)
        self._check_staged(body)
        body.stored.append(Part(announced, shape, self._upload(key, shape, file)))

    def _check_staged(self, body: Body) -> None:
        everything = body.stored_bytes + sum(other.stored_bytes for other in self._open_bodies() if other is not body)
        for name, held, limit in (
            ("limits.transaction", body.stored_bytes, self.limits.transaction_bytes),
            ("limits.staged", everything, self.limits.staged_bytes),
        ):
            if held > limit:
                raise LimitReached(
                    f"transactions that have not ended hold {held} bytes in the object store, more "
                    f"than {name} ({limit}); the last came from {body.xid}",
                    hint="raise the limit, or end the transaction at the source (pg_stat_activity, "
                    "backend_xid); nothing is lost, it is all sent again",
                )

    def _settle_messages(self, body: Body, doubt_until: int) -> None:
        """Of messages that are still in memory it is known now which are certain. One stored before
        stays in doubt.
        """
        for at, (relation, rows) in enumerate(body.waiting):
            if isinstance(rows, EncodedRows) and rows.schema.table_id == messagetable.TABLE_ID:
                body.waiting[at] = (relation, settled(rows, doubt_until=doubt_until))

    def _publish(self, body: Body, commit: BodyCommit, *, position_lsn: int) -> None:
        """The transaction of `body` has committed, by a record that begins at `position_lsn`."""
        if commit.aborted_xids and any(
            isinstance(rows, EncodedRows) and rows.touched_by(commit.aborted_xids) for _, rows in body.waiting
        ):
            # Encoded rows stay together, and a file's entry says which of them do not exist.
            self._store_body(body)
        for part in body.stored:
            if part.as_sent:
                for sent in read_sent_file(self._fetch(part.file.result().key)):
                    self._publish_sent(part.announced[0], sent, commit, position_lsn=position_lsn)
            elif body.decided or all(
                self._tables.may_publish(relation, part.shape, position_lsn=position_lsn, xid=commit.xid)
                for relation in part.announced
            ):
                self._published.append((part.file, part.shape.version, commit))
        for relation, rows in body.take():
            if isinstance(rows, SentRows):
                self._publish_sent(relation, rows, commit, position_lsn=position_lsn)
            elif body.decided or self._tables.may_publish(
                relation, rows.schema, position_lsn=position_lsn, xid=commit.xid
            ):
                self._write(rows.with_commit(lsn=commit.end_lsn, commit_time_us=commit.commit_time_us))

    def _publish_sent(
        self, relation: RelationVersion, sent: SentRows, commit: BodyCommit, *, position_lsn: int
    ) -> None:
        """Only rows that exist say what a table's shape is: of a rolled-back savepoint's shape
        nothing is ever recorded.
        """
        sent = sent.without(commit.aborted_xids)
        if not len(sent):
            return
        schema = self._tables.resolve(relation, position_lsn=position_lsn, reaches_lsn=commit.end_lsn, xid=commit.xid)
        if schema is None:
            return
        if sent.is_withheld:
            self._tables.decide(events.ValueLost(relation.oid, _WITHHELD, position_lsn))
            return
        try:
            for encoded in sent.encoded(
                schema, lsn=commit.end_lsn, commit_time_us=commit.commit_time_us, keys=self._hash_keys
            ):
                self._write(encoded)
        except UnsupportedChange as error:
            self._tables.decide(events.ValueLost(relation.oid, str(error), position_lsn))

    def _add_commits(self, commits: Commits) -> None:
        ours = self._commits
        offset = len(ours.end_lsn)
        for position, origin in commits.origins.items():
            ours.origins[offset + position] = origin
        ours.end_lsn.extend(commits.end_lsn)  # type: ignore[attr-defined]
        ours.commit_time_us.extend(commits.commit_time_us)  # type: ignore[attr-defined]
        ours.xid.extend(commits.xid)  # type: ignore[attr-defined]


def _first_xid(run: RowRun | TruncateRun) -> int:
    return run.xid if isinstance(run, TruncateRun) else int(run.xid[0])


def _transaction(run: RowRun | TruncateRun, commits: Commits) -> int:
    """The number of the transaction, not that of a savepoint, of the first change."""
    if run.lsn is None:
        return _first_xid(run)
    end_lsn = run.lsn if isinstance(run, TruncateRun) else int(run.lsn[0])
    return commits.xid[bisect_left(commits.end_lsn, end_lsn)]
