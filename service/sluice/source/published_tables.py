"""The facts of all published tables, look after look, at the cost of what changed.

Invariant: facts are forgotten with the session that they were read on: another server, or this one
from a backup, may use the numbers of transactions again.
"""

from collections.abc import Mapping
from dataclasses import replace

from sluice.contract.catalog_facts import TableFacts
from sluice.source.catalog import Catalog
from sluice.source.sessions import Connection


class PublishedTables:
    """Remembers the tables of one publication. For one thread."""

    def __init__(self, publication: str) -> None:
        self._publication = publication
        self._connection: Connection | None = None
        self._known: dict[int, tuple[int, TableFacts]] = {}
        self._entries: set[int] = set()
        self._explained = self._removals = 0

    def look(self, connection: Connection) -> Mapping[int, TableFacts]:
        """By oid, in the order of names, today's facts of the tables that the publication sends; the
        same object as before for a table of which nothing changed. Raises SourceError.

        A change that comes while we look is in the facts, or seen by the next look.
        """
        if connection is not self._connection:
            self._known, self._connection = {}, connection
            self._entries, self._explained, self._removals = set(), 0, -1
        catalog = Catalog(connection)
        versions = catalog.published_versions(self._publication)
        changed = [oid for oid, version in versions.items() if self._known.get(oid, (None,))[0] != version]
        looked = catalog.published_among(changed, publication=self._publication) if changed else ()
        self._explain(*catalog.publication_entries_of_all())  # later: what `looked` has counted is judged
        found = {facts.oid: (versions[facts.oid], replace(facts, removals_known=self._removals)) for facts in looked}
        gone = set(changed) - found.keys()
        self._known = {oid: found.get(oid) or self._known[oid] for oid in versions if oid not in gone}
        in_order = sorted(self._known.items(), key=lambda item: (item[1][1].schema, item[1][1].name))
        return {oid: facts for oid, (_, facts) in in_order}

    def _explain(self, entries: set[int], removals: int) -> None:
        """Notes from which count on each removal was of an entry that a look had seen."""
        self._explained += len(self._entries - entries)
        if not 0 <= removals - self._removals <= self._explained:
            self._removals, self._explained = removals, 0
        self._entries = entries
