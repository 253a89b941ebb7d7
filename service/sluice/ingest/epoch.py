"""This process as the pipeline's one writer: what it works with from the moment its epoch is open.

Invariant: there is one per process. Every connection, snapshot and look at the catalog works with the
same log, tables and committer.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import structlog

from sluice.contract.entries import Changes, Commits, Lost, Opened, PreparedEnd
from sluice.errors import ServiceError
from sluice.ingest.commit.committer import Committer
from sluice.ingest.options import IngestOptions
from sluice.ingest.snapshot.gap_closer import GapCloser
from sluice.ingest.snapshot.segments import SnapshotSegments
from sluice.ingest.snapshot.snapshotter import Snapshotter
from sluice.ingest.start import Start, timeline_guard
from sluice.ingest.status import IngestStatus
from sluice.ingest.stop import IngestStop
from sluice.ingest.tables.catalog_watch import CatalogWatch
from sluice.ingest.tables.ddl_signals import DdlSignals
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.ingest.tables.lookup import CatalogLookup
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.tables import events
from sluice.tables import messages as messagetable
from sluice.telemetry.recent_errors import RecentErrors


@dataclass(frozen=True, slots=True)
class Epoch:
    """`opened` is the state right after our `opened` entry. `numbers` gives each object of this
    epoch a number of its own.
    """

    opened: PipelineState
    log: OrderedLog
    tables: FollowedTables
    committer: Committer
    snapshotter: Snapshotter
    repairer: GapCloser
    watch: CatalogWatch
    lookup: CatalogLookup
    end_guard: Callable[[], None]
    numbers: Iterator[int]

    @property
    def settled(self) -> bool:
        """Whether no table waits for its initial rows or for a change of its shape, as the manifest has it."""
        return self.log.is_stored and not self.snapshotter.pending and not self.tables.awaiting

    def configure(self, options: IngestOptions) -> None:
        """From now on the selection of tables, their policies and the limits on the source's load are these."""
        self.tables.decide(events.Configured(options.tables, options.policies))
        self.snapshotter.configure(options.snapshot)

    def close(self) -> None:
        """Closes the sessions at the source; the committer is closed by itself."""
        self.snapshotter.close()
        self.watch.close()
        self.lookup.close()
        self.end_guard()


def open_epoch(
    options: IngestOptions,
    store: ObjectStore,
    start: Start,
    *,
    status: IngestStatus,
    stop: IngestStop,
    errors: RecentErrors,
) -> Epoch:
    """Takes the pipeline over. A writer that still lives is a paused one, because the slot is ours
    by now, and the entry that this appends ends it.

    Blocks. Raises WriterFenced, StoreRefused, and
    StoreUnavailable when it is stopped.
    """
    logger = structlog.get_logger("ingest")

    def store_problem(what: str, error: ServiceError) -> None:
        errors.note("manifest", error)
        logger.warning("store did not answer", what=what, error=str(error))

    starting, finishing = map(start.known, (options.source, stop.finishing))
    guard = timeline_guard(finishing, start)
    log = OrderedLog.open(
        store,
        opened_entry(options, start),
        start.state,
        through_lsn=start.lsn,
        on_problem=store_problem,
        stop=stop.threads,
        before_moving=guard.require,
    )
    starting, finishing = (replace(one, reached=lambda: log.stored.through_lsn) for one in (starting, finishing))
    opened = log.stored
    for entry in messagetable.brought_to(log.state, wanted=options.messages, prefixes=options.message_prefixes):
        log.append(entry)
    if not options.two_phase and opened.prepared:
        _release_prepared(log)
    lookup, signals = CatalogLookup(finishing), DdlSignals.of(log)
    tables = FollowedTables(
        log,
        lookup,
        options.tables,
        wal_end=lookup.wal_end,
        await_seen=lookup.await_seen,
        columns_said=signals.columns_said,
        counts=status.tables,
        policies=options.policies,
    )
    committer = Committer(
        store,
        log,
        on_problem=lambda error: errors.note("spool", error),
        stop=stop.threads,
        counts=status.commits,
    )
    numbers = itertools.count(1)
    status.snapshots.most_rows_per_second = options.snapshot.rows_per_second
    segments = SnapshotSegments(
        starting,
        committer,
        epoch=opened.epoch,
        numbers=numbers,
        counts=status.snapshots,
        stop=stop.threads,
        rows_per_second=options.snapshot.rows_per_second,
        load=options.snapshot.load,
    )
    snapshotter = Snapshotter(
        starting, tables, segments, counts=status.snapshots, stop=stop.threads, limits=options.snapshot
    )
    repairer = GapCloser(starting, log, store, committer, epoch=opened.epoch, numbers=numbers)
    watch = CatalogWatch(
        starting,
        tables,
        store,
        log=log,
        signals=signals,
        is_quiet=lambda: status.oldest_unflushed_us is None,
        advance=committer.advance,
    )
    return Epoch(opened, log, tables, committer, snapshotter, repairer, watch, lookup, guard.close, numbers)


def opened_entry(options: IngestOptions, start: Start, *, lost: Lost | None = None) -> Opened:
    """What a writer says of itself and of the server when it takes the pipeline over at `start`. The history of
    the same timeline stays the same, also where the server does not give it this time.
    """
    server, before = start.server, start.state.opened
    known = before.forks if before is not None and before.timeline == server.timeline else ()
    return Opened(
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        database=server.database,
        database_oid=server.database_oid,
        slot=options.source.slot,
        publication=options.source.publication,
        two_phase=options.two_phase,
        origin=options.origin,
        server_version=server.server_version,
        start_lsn=start.lsn,
        instance=options.instance,
        forks=known if server.forks is None else server.forks,
        lost=lost,
    )


def _release_prepared(log: OrderedLog) -> None:
    """The slot no longer decodes at PREPARE: the server sends what was prepared before again, as a whole,
    when it commits.
    """
    released = tuple(PreparedEnd(one.gid, one.end_lsn, "released") for one in log.stored.prepared.values())
    log.move(Changes((), Commits(), ended=released), through_lsn=log.stored.through_lsn)
    structlog.get_logger("ingest").info(
        "prepared transactions will be sent again when they commit", transactions=len(released)
    )
