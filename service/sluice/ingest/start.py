"""From a manifest to a stream that continues it: what must be true before the server is asked to
stream, and the asking.

Invariant: a stream begins only where the manifest ends, on the server, database and slot that the
manifest is of. Publication and slot are created only while the manifest is empty: after that, one
that is missing is a loss that must be named.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from sluice.contract.entries import Changes, Opened, Progress
from sluice.errors import SlotBusy, SourceUnavailable
from sluice.ingest.options import IngestOptions
from sluice.ingest.publication_gap import PublicationGap
from sluice.ingest.receive.stream import ReplicationStream
from sluice.manifest.reader import load_state, read_backwards
from sluice.manifest.values import PipelineState
from sluice.source.continuity import prove_continuity
from sluice.source.facts import ServerFacts, SlotFacts
from sluice.source.same_log import Mark, require_same_log
from sluice.source.sessions import Connection, KnownSource, SourceOptions, open_query
from sluice.source.setup import set_up
from sluice.source.slot_facts import server_facts, slot_facts
from sluice.source.slot_wait import wait_until_free
from sluice.source.snapshot_export import Waiting, waited_for
from sluice.source.start_replication import best_streaming, highest_protocol
from sluice.source.timeline_guard import TimelineGuard
from sluice.store.base import ObjectStore
from sluice.telemetry.waits import Waits

_SLOT, _STREAM = "the new replication slot", "the stream"
"""What waits."""
_MARKED, _MOST = 32, 256
"""The newest entries whose positions are looked for in the log of the server; and more, where they have none."""


@dataclass(frozen=True, slots=True)
class Start:
    """A stream may begin at `lsn` and continue `state`. With a `gap`, what lies between the two is
    passed over first.
    """

    state: PipelineState
    server: ServerFacts
    lsn: int
    gap: PublicationGap | None = None

    def known(self, source: SourceOptions) -> KnownSource:
        """`source`, held to the place at which this was proven."""
        return KnownSource.of(source, self.server)


def prove_start(
    options: IngestOptions,
    store: ObjectStore,
    newest: Callable[[], PipelineState] | None,
    *,
    unpublished: str,
    waits: Waits,
) -> Start:
    """Proves that a stream can continue the manifest, after waiting until the slot is free. `newest` gives the state
    of our own log, once it is open, and raises WriterFenced when another writer has taken the pipeline over.
    `unpublished` is what the server said of an object, perhaps the publication, that did not exist at some position;
    else empty. `waits` hears what is waited for.

    Blocks. Raises WriterFenced, SlotLost, SlotBusy, SourceError, StoreError and ManifestCorrupt.
    """
    source = options.source
    state = newest() if newest is not None else load_state(store)
    with closing(open_query(source)) as connection:
        gap = PublicationGap.find(connection, options, state, said=unpublished) if unpublished else None
        server = server_facts(connection, source, whole=True)
        if state.opened is None:
            with waits.ended(_SLOT):
                set_up(
                    KnownSource.of(source, server),
                    connection,
                    tables=options.tables,
                    two_phase=options.two_phase,
                    waiting=Waiting(report=lambda blockers: waits.say(_SLOT, waited_for(blockers))),
                )
        with waits.ended(_STREAM):
            wait_until_free(connection, source, bound_s=options.slot_wait_s, said=lambda who: waits.say(_STREAM, who))
        slot = slot_facts(connection, source.slot)
        lsn = prove_continuity(state.opened, state.through_lsn, server=server, slot=slot, two_phase=options.two_phase)
        assert slot is not None
        prove_log(connection, source, store, state, server=server, slot=slot)
        if gap is not None:
            gap.require_unchanged(connection)
            # What committed before the publication existed again cannot be decoded. The server
            # passes over it when it starts behind it.
            lsn = server.wal_end_lsn
    return Start(state, server, lsn, gap)


def prove_log(
    connection: Connection,
    source: SourceOptions,
    store: ObjectStore,
    state: PipelineState,
    *,
    server: ServerFacts,
    slot: SlotFacts,
) -> None:
    """After `prove_continuity`: raises SlotLost when the log of the server is another one than the manifest was written
    from, SourceUnavailable. A slot that has what the manifest has, or a log that left the manifest's timeline behind
    it, needs no proof. A standby has the log of its primary.
    """
    opened, confirmed, kept = state.opened, slot.confirmed_flush_lsn, slot.restart_lsn
    if opened is None or server.in_recovery or opened.timeline != server.timeline or server.forks is None:
        return
    assert confirmed is not None
    assert kept is not None
    began = max([confirmed, *(fork.lsn for fork in server.forks)])
    if began < state.through_lsn:
        marks = _marks(store, state, after_lsn=began)
        require_same_log(KnownSource.of(source, server), connection, marks, kept_lsn=kept)


def _marks(store: ObjectStore, state: PipelineState, *, after_lsn: int) -> list[Mark]:
    """Positions behind `after_lsn` that the newest entries have from the stream, the newest first."""
    marks: list[Mark] = []
    near, far = (max(0, state.seq - count) for count in (_MARKED, _MOST))
    newest = read_backwards(store, after_seq=near, before_seq=state.seq + 1)
    for entry in chain(newest, read_backwards(store, after_seq=far, before_seq=near + 1)):
        body = entry.body
        lost = isinstance(body, Opened) and body.lost is not None
        if entry.through_lsn <= after_lsn or lost or (marks and entry.seq <= near):
            break  # what is lost may be of another log
        if isinstance(body, Changes | Progress) and entry.through_lsn > entry.from_lsn:
            marks.append(Mark(entry.through_lsn))
        if isinstance(body, Changes) and body.commits and body.commits.end_lsn[-1] > after_lsn:
            marks.append(Mark(body.commits.end_lsn[-1], body.commits.xid[-1]))
    return marks


def timeline_guard(source: KnownSource, start: Start) -> TimelineGuard:
    """What proves, from now on, that the server has not left the timeline of `start`."""
    return TimelineGuard(source, may_leave=start.server.in_recovery)


async def open_stream(options: IngestOptions, start: Start) -> ReplicationStream:
    """Raises UsageError when the server does not have what is configured, PublicationMissing, and
    SourceError.
    """
    try:
        return await ReplicationStream.open(
            start.known(options.source),
            start_lsn=start.lsn,
            proto_version=highest_protocol(start.server.server_version),
            streaming=best_streaming(options.streaming, start.server.server_version),
            two_phase=options.two_phase,
            messages=options.messages or options.hears_ddl(start.server),
            origin=options.origin,
            limits=options.stream,
            expect=(start.server.system_identifier, start.server.timeline),
        )
    except SlotBusy as error:
        # It was free a moment ago. The next look waits for whoever has it now, and names them if
        # they stay.
        raise SourceUnavailable(str(error), hint=error.hint) from error
