"""What a relation looks like in the catalog today, for the decoder and for FollowedTables."""

import time

from sluice import faults
from sluice.contract.catalog_facts import TableFacts
from sluice.errors import SourceUnavailable
from sluice.source.catalog import Catalog
from sluice.source.lazy_session import LazySession
from sluice.source.sessions import Connection, KnownSource

UNSEEN_SECONDS = 10.0
"""For how long a commit is waited for that nobody sees yet, before the connection is given up for a while."""
_PAUSE_SECONDS = 0.02


class CatalogLookup:
    """Asks on a session of its own. Thread-safe. Every method raises SourceError."""

    def __init__(self, options: KnownSource) -> None:
        self._options = options
        self._publication = options.publication
        self._session = LazySession(options)

    def __call__(self, oid: int) -> TableFacts | None:
        """The table with this oid; None when it is gone."""

        def find(connection: Connection) -> TableFacts | None:
            faults.point("catalog.asked")
            return Catalog(connection).table(oid, publication=self._publication)

        return self._session.ask(find)

    def await_seen(self, xid: int) -> None:
        """Returns when an answer has what transaction `xid` did, which the stream says has committed."""

        def sees(connection: Connection) -> bool:
            return Catalog(connection).visible().sees(xid)

        until = time.monotonic() + UNSEEN_SECONDS
        while not self._session.ask(sees):
            if time.monotonic() >= until:
                raise SourceUnavailable(
                    f"the server sent transaction {xid}, and other sessions do not see it for {UNSEEN_SECONDS:.0f} s "
                    "now: what it did to the columns of its tables cannot be read yet",
                    hint="with synchronous replication a commit waits for a standby (pg_stat_activity, wait_event "
                    "SyncRep); nothing is lost, it is all sent again",
                )
            self._options.cancellation.sleep(_PAUSE_SECONDS)

    def wal_end(self) -> int:
        """The server's write position now."""

        def find(connection: Connection) -> int:
            faults.point("catalog.asked")
            return Catalog(connection).wal_end()

        return self._session.ask(find)

    def close(self) -> None:
        self._session.close()
