"""A publication that was dropped and created again: what was written while there was none.

Invariant: the server cannot decode what was written in that time, so it is passed over only with
every table stale and every prepared transaction that ended in that time recorded as ended. A
prepared transaction whose rows were not sent, and whose commit still would be, is refused.
"""

from dataclasses import dataclass

import structlog

from sluice.contract.entries import Changes, Commits, PreparedEnd, Progress
from sluice.contract.resyncs import Cause
from sluice.errors import SourceRefused, SourceUnavailable
from sluice.ingest.options import IngestOptions
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.lsn import show
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import PipelineState
from sluice.printable import counted
from sluice.source.publication import changed_since_decoded, require_publication
from sluice.source.sessions import Connection
from sluice.source.slot_facts import prepared_transactions
from sluice.tables import events
from sluice.tables import messages as messagetable
from sluice.tables.catalog_diff import Unseen


@dataclass(frozen=True, slots=True)
class PublicationGap:
    """`prepared` are the transactions, as (gid, xid), that were prepared at the source when the
    publication was found to exist again.
    """

    prepared: frozenset[tuple[str, int]]

    @staticmethod
    def find(connection: Connection, options: IngestOptions, state: PipelineState, *, said: str) -> "PublicationGap":
        """`said` is what the server says of the object that it misses. Raises SourceRefused while the
        publication does not exist, when it is another object, and for prepared transactions whose rows were
        not sent.
        """
        require_publication(connection, options.source.publication)
        if not changed_since_decoded(connection, options.source):
            raise SourceRefused(
                said,
                hint="the publication is older than that place, so it is another object: undo what removed it "
                "from the functions and types that row filters and columns use, or pass over the place with "
                "`sluice slot recreate`",
            )
        gap = PublicationGap(prepared_transactions(connection))
        if options.two_phase:
            gap._refuse_unseen(state, publication=options.source.publication)
        return gap

    def _refuse_unseen(self, state: PipelineState, *, publication: str) -> None:
        seen = {(one.gid, one.xid) for one in state.prepared.values()}
        unseen = sorted(gid for gid, xid in self.prepared if (gid, xid) not in seen)
        if unseen:
            raise SourceRefused(
                f"{counted(len(unseen), 'transaction was', 'transactions were')} prepared "
                f"while publication {publication} did not exist, and the server does not send the rows: {unseen[:5]}",
                hint="end them with COMMIT PREPARED or ROLLBACK PREPARED, then start again",
            )

    def require_unchanged(self, connection: Connection) -> None:
        """Raises SourceUnavailable when a prepared transaction began or ended since `find`."""
        if prepared_transactions(connection) != self.prepared:
            raise SourceUnavailable(
                "a prepared transaction began or ended while its state was read", hint="it is read again"
            )

    def pass_over(self, options: IngestOptions, log: OrderedLog, tables: FollowedTables, *, to_lsn: int) -> None:
        """Records that the log goes on at `to_lsn`, with the tables stale: their changes up to
        there are lost to the stream.
        """
        publication, through_lsn = options.source.publication, log.stored.through_lsn
        reason = (
            f"publication {publication} was dropped and created again: the server does not send what was "
            "written in between"
        )
        for state in tuple(tables.states().values()):
            tables.decide(events.EqualityLost(int(state.table_id), Unseen(Cause.GAP, reason), lsn=to_lsn))
        # Whatever ended these in between is not sent either, and their gids may be used again.
        ended = tuple(
            PreparedEnd(one.gid, one.end_lsn, "passed_over")
            for one in log.stored.prepared.values()
            if (one.gid, one.xid) not in self.prepared
        )
        body = Changes((), Commits(), ended=ended) if ended else Progress()
        log.move(body, through_lsn=to_lsn)
        for entry in messagetable.brought_to(log.state, wanted=options.messages, prefixes=options.message_prefixes):
            log.append(entry)
        structlog.get_logger("ingest").error(
            "passing over changes of the time without publication",
            publication=publication,
            from_lsn=show(through_lsn),
            to_lsn=show(to_lsn),
        )
