"""What a relation looks like in the catalog today, for the decoder and for FollowedTables."""

from sluice import faults
from sluice.contract.catalog_facts import TableFacts
from sluice.source.catalog import Catalog
from sluice.source.lazy_session import LazySession
from sluice.source.sessions import Connection, KnownSource


class CatalogLookup:
    """Asks on a session of its own. Thread-safe. Every method raises SourceError."""

    def __init__(self, options: KnownSource) -> None:
        self._publication = options.publication
        self._session = LazySession(options)

    def __call__(self, oid: int) -> TableFacts | None:
        """The table with this oid; None when it is gone."""

        def find(connection: Connection) -> TableFacts | None:
            faults.point("catalog.asked")
            return Catalog(connection).table(oid, publication=self._publication)

        return self._session.ask(find)

    def wal_end(self) -> int:
        """The server's write position now."""

        def find(connection: Connection) -> int:
            faults.point("catalog.asked")
            return Catalog(connection).wal_end()

        return self._session.ask(find)

    def close(self) -> None:
        self._session.close()
